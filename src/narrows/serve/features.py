"""What a request may ask for beyond text: constraints on its form, calls of tools, a server that remembers.

None of it is there yet. A request that asks for one is told so; values that ask for nothing are taken.
"""

from __future__ import annotations

from typing import Any

from .errors import ApiError

_NOTHING: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "text": ({}, {"format": {"type": "text"}}),
    "reasoning": ({},),
    "include": ([],),
    "truncation": ("disabled",),
    "background": (False,),
    "previous_response_id": (),
    "conversation": (),
}


def check(body: Any) -> None:
    """Raises ApiError for a feature that a body asks for."""
    for name, nothing in _NOTHING.items():
        value = getattr(body, name, None)
        if value is not None and value not in nothing:
            raise ApiError(400, f"{name} is not supported yet; leave it out", param=name, code="unsupported_parameter")

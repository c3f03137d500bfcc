"""What a request may ask for and not get: old names of tools, a server that remembers.

A request that asks for one is told so; values that ask for nothing are taken.
"""

from __future__ import annotations

from typing import Any

from .errors import ApiError

_NOTHING: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "reasoning": ({},),
    "include": ([],),
    "truncation": ("disabled",),
    "background": (False,),
    "previous_response_id": (),
    "conversation": (),
}
_INSTEAD = {"functions": ": it is called tools now", "function_call": ": it is called tool_choice now"}


def check(body: Any) -> None:
    """Raises ApiError for a feature that a body asks for."""
    for name, nothing in _NOTHING.items():
        value = getattr(body, name, None)
        if value is not None and value not in nothing:
            message = f"{name} is not supported{_INSTEAD.get(name, '; leave it out')}"
            raise ApiError(400, message, param=name, code="unsupported_parameter")

"""Narrows: a decode engine that makes each token cost as few bytes as the quality budget allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .llm import LLM
    from .sampling import SamplingParams
    from .stack import Stack

__all__ = ["LLM", "SamplingParams", "Stack"]

_HOMES = {"LLM": "llm", "SamplingParams": "sampling", "Stack": "stack"}


def __getattr__(name: str) -> Any:
    # Imported on first use: the command line and light modules start without numpy or the native core.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)

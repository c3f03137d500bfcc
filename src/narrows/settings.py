"""What the settings of a method may be."""

from __future__ import annotations

from typing import Any


def check_ranges(method: Any, **limits: tuple[int, int]) -> None:
    """Raises ValueError for a setting that is not within its limits, both included."""
    for name, (low, high) in limits.items():
        if not low <= getattr(method, name) <= high:
            raise ValueError(f"{name} is {getattr(method, name)}; it must be between {low} and {high}")

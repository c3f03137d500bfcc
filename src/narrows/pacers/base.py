"""The seam of pacers: how many tokens each request drafts in a step, from what drafting has cost and brought so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..types import Request


class Costs(Protocol):
    """What was measured so far."""

    def verify(self, num_rows: int) -> float:
        """Seconds of a step with a target forward over this many rows, but for its drafting."""
        ...

    def draft(self, num_tokens: int) -> float:
        """Seconds of drafting up to this many tokens for every request of a step."""
        ...

    def worth(self, request: Request, num_tokens: int) -> list[float]:
        """For each token of a draft of so many, by its place, the probability that it is kept."""
        ...


class Pace(NamedTuple):
    """Tokens to draft, and the reason when that is none."""

    num_tokens: int
    reason: str = ""


class Pacer(Protocol):
    def pace(self, requests: Sequence[Request], limits: Sequence[int], costs: Costs) -> list[Pace]:
        """For each request at most its limit, which is positive."""
        ...

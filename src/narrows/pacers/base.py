"""The seam of pacers: how many tokens each request drafts in a step, from what drafting has cost and brought so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..types import F64, I32, Request


class Costs(Protocol):
    """What was measured so far."""

    def verify(self, num_rows: I32) -> F64:
        """Seconds [n] of steps with target forwards over so many rows [n], but for their drafting."""
        ...

    def draft(self, num_tokens: I32) -> F64:
        """Seconds [n] of drafting up to so many tokens [n] for every request of a step."""
        ...

    def worth(self, request: Request, num_tokens: int) -> F64:
        """What each token [num_tokens] of a draft adds to the tokens that are kept, none more than those before it."""
        ...

    @property
    def untried(self) -> float:
        """Seconds of steps since the last try."""
        ...

    @property
    def trial(self) -> float:
        """Seconds that a try takes, with the reading of what the drafter has missed; 0 before there was one."""
        ...


class Pace(NamedTuple):
    """Tokens to draft, and the reason when that is none. A try is drafted to see whether it would pay by now."""

    num_tokens: int
    reason: str = ""
    is_try: bool = False


class Pacer(Protocol):
    def pace(self, requests: Sequence[Request], limits: Sequence[int], costs: Costs) -> list[Pace]:
        """For each request at most its limit, which is positive."""
        ...

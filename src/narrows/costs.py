"""What drafting costs and brings, measured as the engine runs: what pacers decide on."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import takewhile

from .types import Request

STATE = "acceptance"
WEIGHT = 0.2  # of the latest measurement of a time
FORGET = 1024  # steps
MEMORY = 0.9  # what a verified draft still counts for at the next


@dataclass(slots=True)
class Acceptance:
    """Kept and tested tokens of drafts, those after the first that was not kept being untested; the old count less."""

    kept: float = 0
    tested: float = 0

    def observe(self, num_accepted: int, num_drafted: int) -> None:
        self.kept = self.kept * MEMORY + num_accepted
        self.tested = self.tested * MEMORY + min(num_accepted + 1, num_drafted)


@dataclass(slots=True)
class MeasuredCosts:
    """Times by number of rows, and acceptance by request."""

    seconds: dict[int, float] = field(default_factory=dict)  # of a step but for its drafting, by rows
    recent: set[int] = field(default_factory=set)  # rows measured since the others were last forgotten
    num_verified: int = 0
    drafting: float = 0.0  # seconds a drafted token takes, all requests together
    overall: Acceptance = field(default_factory=Acceptance)  # what a new request starts from

    def verify(self, num_rows: int) -> float:
        """On a straight line between measured numbers. Beyond them the best that can be: what is not known is tried.

        That is, more rows for nothing, and fewer in proportion.
        """
        known = sorted(self.seconds)
        if not known:
            return 1.0
        i = bisect_left(known, num_rows)
        if i == len(known):
            return self.seconds[known[-1]]
        if i == 0:
            return self.seconds[known[0]] * num_rows / known[0]
        low, high = known[i - 1], known[i]
        share = (num_rows - low) / (high - low)
        return self.seconds[low] + share * (self.seconds[high] - self.seconds[low])

    def draft(self, num_tokens: int) -> float:
        return self.drafting * num_tokens

    def acceptance(self, request: Request) -> float:
        """Its own, and two tokens of what all requests had; those start from one kept of two: little is tried at first,
        and more if it is kept.
        """
        base = (self.overall.kept + 1) / (self.overall.tested + 2)
        own: Acceptance = request.state.setdefault(STATE, Acceptance())
        return (own.kept + 2 * base) / (own.tested + 2)

    def verified(self, num_rows: int, seconds: float) -> None:
        """A step in which no prompt was read took so long without drafting.

        Times that are older than the last one of as many rows move along with it: the machine as a whole is slower or
        faster now. What is not measured again is forgotten.
        """
        seconds = max(seconds, 1e-9)
        old = self.seconds.get(num_rows, seconds)
        new = _mean(old, seconds)
        for rows in takewhile(num_rows.__ne__, self.seconds):
            self.seconds[rows] *= new / old
        self.seconds.pop(num_rows, None)
        self.seconds[num_rows] = new  # the oldest comes first
        self.recent.add(num_rows)
        self.num_verified += 1
        if self.num_verified % FORGET == 0:
            self.seconds = {rows: time for rows, time in self.seconds.items() if rows in self.recent}
            self.recent = set()

    def drafted(self, num_tokens: int, seconds: float) -> None:
        """Drafting up to `num_tokens` for every request of a step took so long."""
        self.drafting = _mean(self.drafting or seconds / num_tokens, seconds / num_tokens)

    def accepted(self, request: Request, num_accepted: int, num_drafted: int) -> None:
        request.state.setdefault(STATE, Acceptance()).observe(num_accepted, num_drafted)
        self.overall.observe(num_accepted, num_drafted)


def _mean(old: float, new: float) -> float:
    return old + WEIGHT * (new - old)

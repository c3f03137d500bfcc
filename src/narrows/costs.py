"""What drafting costs and brings, measured as the engine runs: what pacers decide on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from .types import F64, I32, Request

STATE, WORTH = "acceptance", "worth"
WEIGHT = 0.2  # of the latest measurement of a time
FORGET = 1024  # measurements
MEMORY = 0.95  # what a verified draft still counts for at the next
PRIOR = 6  # drafts that what is supposed counts for
FAR = 1 << 30  # more rows or tokens than there will be
NEGLIGIBLE = 1e-3  # a probability to be kept: no place behind it is looked at


@dataclass(slots=True)
class Times:
    """Seconds by number, of rows or of tokens."""

    free: bool  # beyond what was measured: more for nothing, so that it is tried; else in proportion
    seconds: dict[int, float] = field(default_factory=dict)
    recent: set[int] = field(default_factory=set)  # measured since the others were last forgotten
    count: int = 0
    _line: tuple[F64, F64] | None = None  # through the measured points

    def at(self, numbers: I32) -> F64:
        """On a straight line between measured numbers, and in proportion below them. Something, if none is."""
        if not self.seconds:
            return np.full(len(numbers), 1.0 if self.free else 0.0)
        if self._line is None:
            known = sorted(self.seconds.items())
            far = (FAR, known[-1][1] * (1 if self.free else FAR / known[-1][0]))
            numbers_, seconds = zip((0, 0.0), *known, far, strict=True)
            self._line = np.asarray(numbers_, float), np.asarray(seconds, float)
        return np.interp(numbers, *self._line)

    def observe(self, n: int, seconds: float) -> None:
        """Times that are older than the last one of this number move along with it: the machine as a whole is slower or
        faster now. What is not measured again is forgotten.
        """
        seconds = max(seconds, 1e-9)
        old = self.seconds.get(n, seconds)
        new = old + WEIGHT * (seconds - old)
        for other in takewhile(n.__ne__, self.seconds):
            self.seconds[other] *= new / old
        self.seconds.pop(n, None)
        self.seconds[n] = new  # the oldest comes first
        self.recent.add(n)
        self.count += 1
        if self.count % FORGET == 0:
            self.seconds = {n: time for n, time in self.seconds.items() if n in self.recent}
            self.recent = set()
        self._line = None


@dataclass(slots=True)
class Acceptance:
    """Tokens drafted and kept, by their place in the draft, be it a chain or a tree; the old count less."""

    drafted: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)

    def observe(self, path: Sequence[int], num_drafted: int) -> None:
        """Of a draft of so many tokens those of `path` were kept."""
        more = [0.0] * (num_drafted - len(self.drafted))
        self.drafted = [n * MEMORY + (i < num_drafted) for i, n in enumerate(self.drafted + more)]
        self.kept = [n * MEMORY for n in self.kept + more]
        for i in path:
            self.kept[i] += 1

    def at(self, place: int, supposed: float) -> float:
        """Probability that the token at a place is kept."""
        drafted, kept = (self.drafted[place], self.kept[place]) if place < len(self.drafted) else (0, 0)
        return (kept + PRIOR * supposed) / (drafted + PRIOR)


@dataclass(slots=True)
class MeasuredCosts:
    """Times by number of rows and of drafted tokens, and acceptance by request."""

    steps: Times = field(default_factory=lambda: Times(free=True))  # but for their drafting, by rows
    drafting: Times = field(default_factory=lambda: Times(free=False))  # by tokens of the longest draft
    overall: Acceptance = field(default_factory=Acceptance)  # what a new request starts from
    num_accepted: int = 0  # drafts
    untried: float = 0.0
    trial: float = 0.0

    def verify(self, num_rows: I32) -> F64:
        return self.steps.at(num_rows)

    def draft(self, num_tokens: I32) -> F64:
        return self.drafting.at(num_tokens)

    def worth(self, request: Request, num_tokens: int) -> F64:
        """As the request's drafts fared, and as those of all did."""
        known = request.state.get(WORTH)
        if known is None or known[:2] != (self.num_accepted, num_tokens):
            own: Acceptance = request.state.setdefault(STATE, Acceptance())
            known = self.num_accepted, num_tokens, _falling(_probabilities(own, self.overall, num_tokens))
            request.state[WORTH] = known
        return known[2]

    def verified(self, num_rows: int, seconds: float) -> None:
        """A step in which no prompt was read took so long without drafting."""
        self.steps.observe(num_rows, seconds)
        self.untried += seconds

    def tried(self, seconds: float) -> None:
        """A try took so long beyond plain decoding. The latest counts half: one may come after a long pause."""
        self.trial = (self.trial + seconds) / 2 if self.trial else seconds
        self.untried = 0.0

    def drafted(self, num_tokens: int, seconds: float) -> None:
        """Drafting up to `num_tokens` for every request of a step took so long."""
        self.drafting.observe(num_tokens, seconds)

    def accepted(self, request: Request, path: Sequence[int], num_drafted: int) -> None:
        """Of a draft of so many tokens those of `path`, by index, were kept."""
        request.state.setdefault(STATE, Acceptance()).observe(path, num_drafted)
        self.overall.observe(path, num_drafted)
        self.num_accepted += 1


def _probabilities(own: Acceptance, overall: Acceptance, num_tokens: int) -> list[float]:
    """That the token at each place is kept.

    What nothing is known of goes on as a chain of which every token is kept as often as the first. That starts from one
    of two: little is tried at first, and more if it is kept.
    """
    found: list[float] = []
    all_before, before, first = 1.0, 1.0, 0.5
    for place in range(num_tokens):
        all_here = overall.at(place, all_before * first)
        here = own.at(place, min(1.0, before * all_here / all_before))
        found.append(here)
        if here < NEGLIGIBLE:
            break
        first = first if place else here
        all_before, before = max(all_here, NEGLIGIBLE), here
    return found + [0.0] * (num_tokens - len(found))


def _falling(gains: list[float]) -> F64:
    """Where a later token is kept more often than those before, as in a tree, they share: none comes without them."""
    runs: list[tuple[float, int]] = []  # (gain of all, tokens)
    for gain in gains:
        total, count = gain, 1
        while runs and runs[-1][0] * count < total * runs[-1][1]:
            total, count = total + runs[-1][0], count + runs[-1][1]
            runs.pop()
        runs.append((total, count))
    return np.repeat([total / count for total, count in runs], [count for _, count in runs])

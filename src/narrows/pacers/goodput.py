"""Drafts as many tokens as raise the number of tokens kept per second, and none where none does (SmartSpec,
arXiv:2406.14066, section 4).

A drafted token is worth the probability that it is kept. It costs a row of the verification and, in the longest draft
of a step, time of the drafter. Tokens are added where they are worth most, as far as it pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..settings import check_ranges
from ..types import Request
from .base import Costs, Pace

STATE = "pacers.goodput"
FIRST_RETRY = 16
MARGIN = 0.03  # that drafts must promise beyond plain decoding: times are of a machine that does other things too
UNPROFITABLE = "at this acceptance drafts cost more than they bring"


@dataclass(frozen=True, slots=True)
class Goodput:
    """Drafting that does not pay is tried again with one token: after 16 steps of a request, 32, ..., every `retry`."""

    retry: int = 256

    def __post_init__(self) -> None:
        check_ranges(self, retry=(2, 1 << 20))

    def pace(self, requests: Sequence[Request], limits: Sequence[int], costs: Costs) -> list[Pace]:
        each = [_falling(costs.worth(request, limit)) for request, limit in zip(requests, limits, strict=True)]
        worth = [(gain, -k, i) for i, gains in enumerate(each) for k, gain in enumerate(gains, 1)]
        worth.sort(reverse=True)
        rows = kept = len(requests)
        best, chosen, longest = (1 + MARGIN) * kept / costs.verify(rows), 0, 0
        for count, (gain, k, _) in enumerate(worth, 1):
            kept, longest = kept + gain, max(longest, -k)
            goodput = kept / (costs.verify(rows + count) + costs.draft(longest))
            if goodput > best:
                best, chosen = goodput, count
        lengths = [0] * len(requests)
        for _, k, i in worth[:chosen]:
            lengths[i] = max(lengths[i], -k)
        return [self._pace(request, length) for request, length in zip(requests, lengths, strict=True)]

    def _pace(self, request: Request, length: int) -> Pace:
        idle = 0 if length else request.state.get(STATE, 0) + 1
        request.state[STATE] = idle
        doubled = FIRST_RETRY <= idle < self.retry and idle.bit_count() == 1
        if doubled or (idle and idle % self.retry == 0):
            return Pace(1)
        return Pace(length, "" if length else UNPROFITABLE)


def _falling(gains: list[float]) -> list[float]:
    """Where a later token is worth more than those before it, as in a tree, they share: none comes without them."""
    runs: list[tuple[float, int]] = []  # (worth of all, tokens)
    for gain in gains:
        total, count = gain, 1
        while runs and runs[-1][0] * count < total * runs[-1][1]:
            total, count = total + runs[-1][0], count + runs[-1][1]
            runs.pop()
        runs.append((total, count))
    return [total / count for total, count in runs for _ in range(count)]

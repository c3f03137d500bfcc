"""Drafts as many tokens as raise the number of tokens kept per second, and none where none does (SmartSpec,
arXiv:2406.14066, section 4).

A drafted token is worth the probability that it is kept. It costs a row of the verification and, in the longest draft
of a step, time of the drafter. Tokens are added where they are worth most, as far as it pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..settings import check_ranges
from ..types import I32, Request
from .base import Costs, Pace

STATE = "pacers.goodput"
PASSED_OVER = 2  # times, before a request is tried
MARGIN = 0.03  # that drafts must promise beyond plain decoding: times are of a machine that does other things too
UNPROFITABLE = "at this acceptance drafts cost more than they bring"


@dataclass(frozen=True, slots=True)
class Goodput:
    """Where drafting does not pay one request at a time tries a token again, as often as takes `tries` of the time."""

    tries: float = 0.01

    def __post_init__(self) -> None:
        check_ranges(self, tries=(0, 1))

    def pace(self, requests: Sequence[Request], limits: Sequence[int], costs: Costs) -> list[Pace]:
        idle = [request.state.get(STATE, 0) for request in requests]
        lengths = self._lengths(requests, limits, costs)
        idle = [0 if length else n + 1 for n, length in zip(idle, lengths, strict=True)]
        paces = [Pace(length, "" if length else UNPROFITABLE) for length in lengths]
        longest = max(range(len(idle)), key=idle.__getitem__)
        if idle[longest] >= PASSED_OVER and self.tries * costs.untried > costs.trial:
            paces[longest] = Pace(1, is_try=True)
            idle[longest] = 0
        for request, num_idle in zip(requests, idle, strict=True):
            request.state[STATE] = num_idle
        return paces

    def _lengths(self, requests: Sequence[Request], limits: Sequence[int], costs: Costs) -> list[int]:
        owners, places = _layout(tuple(limits))
        gains = np.concatenate([costs.worth(request, limit) for request, limit in zip(requests, limits, strict=True)])
        order = np.argsort(-gains, kind="stable")  # of a request's tokens, first come first
        kept = np.full(len(order) + 1, float(len(requests)))
        kept[1:] += gains[order].cumsum()
        longest = np.zeros(len(kept), np.int32)
        np.maximum.accumulate(places[order], out=longest[1:])
        rows = np.arange(len(requests), len(requests) + len(kept), dtype=np.int32)
        goodput = kept / (costs.verify(rows) + costs.draft(longest))
        best = int(goodput.argmax())
        lengths = np.zeros(len(requests), np.int32)
        if goodput[best] > (1 + MARGIN) * goodput[0]:
            np.maximum.at(lengths, owners[order[:best]], places[order[:best]])
        return lengths.tolist()


@lru_cache(16)
def _layout(limits: tuple[int, ...]) -> tuple[I32, I32]:
    """Of all tokens there may be, which request's and which of its draft's each is."""
    sizes = np.asarray(limits)
    return np.arange(len(limits), dtype=np.int32).repeat(sizes), np.concatenate(
        [np.arange(1, limit + 1, dtype=np.int32) for limit in limits]
    )

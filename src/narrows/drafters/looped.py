"""DLoop (arXiv:2610.07659): a drafter that was sure of what it drafted drafts on, and one forward verifies it all.

The gate decides whether to draft *more*. Everything drafted is verified, the stage that failed the gate included:
dropping a token for its own probability would bias what is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..settings import check_ranges
from ..trees import joined, trunk
from ..types import Draft
from .base import Ask, Drafter, Source, Tools


@dataclass(frozen=True, slots=True)
class Looped:
    """Up to `stages` stages of `base`, each as long as the last one's sum of log q is at or above `gate`.

    `rule=token` is the variant to compare with: after the first stage one token at a time, while the sum over all
    drafted tokens is at or above the gate. After a stage that is a tree the next goes on from its first branch.
    """

    base: Drafter = field(metadata={"method": True})
    gate: float = -0.5
    stages: int = 4
    rule: str = "stage"

    def __post_init__(self) -> None:
        if not self.gate <= 0:
            raise ValueError(f"gate is {self.gate}; it must be at most 0, or -inf")
        check_ranges(self, stages=(1, 16))
        if self.rule not in ("stage", "token"):
            raise ValueError(f"rule is {self.rule!r}; it must be stage or token")

    @property
    def max_drafted(self) -> int:
        return self.base.max_drafted * self.stages

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.base.sources

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        drafts: list[Draft | None] = [None] * len(asks)
        live = dict(enumerate(asks))
        while live:
            stages = dict(zip(live, self.base.propose(list(live.values()), tools), strict=True))
            live = {}
            for i, stage in stages.items():
                if stage is None:
                    continue
                drafts[i] = whole = joined(drafts[i], stage)
                left = min(self.max_drafted, asks[i].max_tokens) - len(whole.tokens)
                by_stage = self.rule == "stage"
                chain, last = trunk(whole), trunk(stage)
                ended = any(token in tools.end_ids for token in last.tokens.tolist())
                if left > 0 and not ended and _sureness(last if by_stage else chain) >= self.gate:
                    live[i] = Ask(asks[i].request, left if by_stage else 1, joined(asks[i].drafted, chain))
        return drafts


def _sureness(draft: Draft) -> float:
    return -np.inf if draft.logprobs is None else float(draft.logprobs.sum())

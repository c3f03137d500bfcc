"""Several drafters in order: a request gets the proposal of the first that has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Draft
from .base import Ask, Drafter, Source, Tools


@dataclass(frozen=True, slots=True)
class First:
    """Written ``a|b``: the cheap and sure before the dear, e.g. ``ngram:min_n=3|model:model=NAME``."""

    drafters: tuple[Drafter, ...]

    @property
    def max_drafted(self) -> int:
        return max(drafter.max_drafted for drafter in self.drafters)

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(dict.fromkeys(source for drafter in self.drafters for source in drafter.sources))

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        drafts: list[Draft | None] = [None] * len(asks)
        for drafter in self.drafters:
            left = [i for i, draft in enumerate(drafts) if draft is None]
            for i, draft in zip(left, drafter.propose([asks[i] for i in left], tools) if left else (), strict=True):
                drafts[i] = draft
        return drafts

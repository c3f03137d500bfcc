"""A smaller model of the same vocabulary drafts (Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..chains import CHAIN, draft_chains
from ..settings import check_ranges
from ..types import Draft
from .base import Ask, Source, Tools


@dataclass(frozen=True, slots=True)
class DraftModel:
    """`k` tokens at a time by the model of this name, which has a cursor of its own on every request.

    Prompts are read `chunk` tokens a step beside the target; there is no draft before the cursor has caught up. In
    fewer bits (`weights`) it drafts faster and is wrong more often. Its next likeliest tokens, `leaves` in all, stand
    beside them as a tree.
    """

    model: str
    k: int = 4
    chunk: int = 512
    weights: str = "auto"
    leaves: int = 0

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model is empty; it must be a short name or a path")
        check_ranges(self, **CHAIN, chunk=(16, 65536))

    @property
    def max_drafted(self) -> int:
        return self.k + self.leaves

    @property
    def sources(self) -> tuple[Source, ...]:
        return (Source("model", self.model, self.weights),)

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        return draft_chains(asks, tools, tools.readers[self.sources[0]], self.k, self.chunk, self.leaves)

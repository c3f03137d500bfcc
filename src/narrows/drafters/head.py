"""A head drafts from the hidden states of the target (EAGLE-3, arXiv:2503.01840).

One decoder layer over the embedding of a token and what the target made of those before it, with a small vocabulary.
While it drafts, its own states stand for the target's that are not there yet; `narrows.heads` keeps them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..chains import CHAIN, draft_chains
from ..settings import check_ranges
from ..types import Draft
from .base import Ask, Source, Tools

CHUNK = 512  # tokens read before a draft


@dataclass(frozen=True, slots=True)
class Head:
    """`k` tokens at a time by a head trained for the model: the one in folder `name`, by default its own.

    Its next likeliest tokens, `leaves` in all, stand beside them as a tree.
    """

    name: str = "auto"
    k: int = 3
    leaves: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name is empty; it must be a head's folder, or auto")
        check_ranges(self, **CHAIN)

    @property
    def max_drafted(self) -> int:
        return self.k + self.leaves

    @property
    def sources(self) -> tuple[Source, ...]:
        return (Source("head", self.name),)

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        return draft_chains(asks, tools, tools.readers[self.sources[0]], self.k, CHUNK, self.leaves)

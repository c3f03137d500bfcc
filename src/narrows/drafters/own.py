"""The target drafts for itself, with some of its layers or in fewer bits (Zhang et al., arXiv:2309.08168)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..chains import CHAIN, draft_chains
from ..settings import check_ranges
from ..types import Draft
from .base import Ask, Source, Tools


@dataclass(frozen=True, slots=True)
class Own:
    """`k` tokens at a time by the model itself without the layers `skip`, e.g. 10-19+22, or in the format `weights`.

    With the model's own weights it needs memory for its KV cache only. Layers in the middle are missed least.
    `leaves` as of draft models.
    """

    skip: str = ""
    weights: str = "auto"
    k: int = 4
    chunk: int = 512
    leaves: int = 0

    def __post_init__(self) -> None:
        if not self.skip and self.weights == "auto":
            raise ValueError("nothing makes it cheaper than the model: give skip, weights or both")
        check_ranges(self, **CHAIN, chunk=(16, 65536))
        layers(self.skip)

    @property
    def max_drafted(self) -> int:
        return self.k + self.leaves

    @property
    def sources(self) -> tuple[Source, ...]:
        return (Source("self", weights=self.weights, skip=layers(self.skip)),)

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        return draft_chains(asks, tools, tools.readers[self.sources[0]], self.k, self.chunk, self.leaves)


def layers(text: str) -> tuple[int, ...]:
    """``3+10-12`` as numbers, in order. Raises ValueError."""
    found: set[int] = set()
    for part in text.split("+") if text else ():
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"skip is {text[:40]!r}; it must be layers such as 10-19 or 3+10-12")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))

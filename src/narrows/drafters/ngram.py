"""Prompt lookup: when the last tokens have been seen before, propose what followed them then (Saxena 2023).

Earlier places are found by chains of equal n-grams, as LZ77 compressors keep them: one entry a token. The longest match
among the latest places wins, and the latest of equals. How sure a guess is follows Laplace's rule of succession: after
a match of m tokens the next one matches with probability (m + 1) / (m + 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..types import Draft, Request
from .base import Ask, Tools

STATE = "drafters.ngram"
MAX_MATCH = 64  # longer matches are as good: bounds the work on texts that repeat themselves


@dataclass(slots=True)
class _Index:
    """The places of a request's n-grams."""

    latest: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> where it last ended
    before: list[int] = field(default_factory=list)  # by place: where the n-gram that ends there ended before, or -1


@dataclass(frozen=True, slots=True)
class NGram:
    """`k` tokens at a time, after a match of at least `min_n`; the longest match among `places` earlier ones."""

    k: int = 8
    min_n: int = 2
    places: int = 32

    def __post_init__(self) -> None:
        for name, low, high in (("k", 1, 64), ("min_n", 1, 16), ("places", 1, 4096)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be between {low} and {high}")

    @property
    def max_drafted(self) -> int:
        return self.k

    @property
    def models(self) -> tuple[str, ...]:
        return ()

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: Ask) -> Draft | None:
        index = self._update(ask.request)
        text = [*ask.request.tokens, *ask.tail] if ask.tail else ask.request.tokens
        length, at = self._longest(index, text)
        if not length:
            return None
        k = min(self.k, ask.max_tokens)
        tokens = text[at + 1 : at + 1 + k]
        while len(tokens) < k:  # the place is so late that what followed it is what is being drafted
            tokens.append(tokens[at + 1 + len(tokens) - len(text)])
        matched = length + np.arange(k)
        return Draft(np.array(tokens, np.int32), logprobs=np.log((matched + 1) / (matched + 2)).astype(np.float32))

    def _update(self, request: Request) -> _Index:
        """The request's index with the tokens that came since the last time."""
        index: _Index = request.state.setdefault(STATE, _Index())
        tokens, n = request.tokens, self.min_n
        for end in range(len(index.before), len(tokens)):
            gram = tuple(tokens[end + 1 - n : end + 1]) if end + 1 >= n else ()
            index.before.append(index.latest.get(gram, -1) if gram else -1)
            if gram:
                index.latest[gram] = end
        return index

    def _longest(self, index: _Index, text: list[int]) -> tuple[int, int]:
        """The length of the longest match of the end of the text, and where its latest occurrence ends."""
        last, best, where = len(text) - 1, 0, -1
        place = index.latest.get(tuple(text[len(text) - self.min_n :]), -1)
        for _ in range(self.places):
            if place < 0 or best == MAX_MATCH:
                break
            if place < last:
                length = 0
                while length < MAX_MATCH and length <= place and text[place - length] == text[last - length]:
                    length += 1
                if length > best:
                    best, where = length, place
            place = index.before[place]
        return best, where

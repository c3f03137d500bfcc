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
    """`k` tokens at a time, after a match of at least `min_n`; the longest match among `places` earlier ones.

    With several `branches` the next best matches that go on with another token are proposed beside it, as a tree.
    """

    k: int = 8
    min_n: int = 2
    places: int = 32
    branches: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (("k", 1, 64), ("min_n", 1, 16), ("places", 1, 4096), ("branches", 1, 8)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be between {low} and {high}")

    @property
    def max_drafted(self) -> int:
        return self.k * self.branches

    @property
    def models(self) -> tuple[str, ...]:
        return ()

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: Ask) -> Draft | None:
        index = self._update(ask.request)
        text = [*ask.request.tokens, *ask.tail] if ask.tail else ask.request.tokens
        tokens: list[int] = []
        parents: list[int] = []
        matched: list[int] = []
        for length, place in self._matches(index, text):
            k = min(self.k, ask.max_tokens - len(tokens))
            branch = text[place + 1 : place + 1 + k]
            while len(branch) < k:  # the place is so late that what followed it is what is being drafted
                branch.append(branch[place + 1 + len(branch) - len(text)])
            parents += [-1, *range(len(tokens), len(tokens) + k - 1)][:k]
            tokens += branch
            matched += range(length, length + k)
        if not tokens:
            return None
        sure = np.log((np.array(matched) + 1) / (np.array(matched) + 2)).astype(np.float32)
        tree = np.array(parents, np.int32) if parents.count(-1) > 1 else None
        return Draft(np.array(tokens, np.int32), tree, logprobs=sure)

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

    def _matches(self, index: _Index, text: list[int]) -> list[tuple[int, int]]:
        """The best matches of the end of the text that go on differently: their lengths, and where they end."""
        last = len(text) - 1
        best: dict[int, tuple[int, int]] = {}  # by the token that follows
        place = index.latest.get(tuple(text[len(text) - self.min_n :]), -1)
        for _ in range(self.places):
            if place < 0 or (self.branches == 1 and any(length == MAX_MATCH for length, _ in best.values())):
                break
            if place < last:
                length = 0
                while length < MAX_MATCH and length <= place and text[place - length] == text[last - length]:
                    length += 1
                if length > best.get(text[place + 1], (0, 0))[0]:
                    best[text[place + 1]] = length, place
            place = index.before[place]
        return sorted(best.values(), reverse=True)[: self.branches]

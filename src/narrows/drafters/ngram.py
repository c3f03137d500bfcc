"""Prompt lookup: when the last tokens have been seen before, propose what followed them then (Saxena 2023).

With a `corpus`, what a request has not seen itself is looked up in requests that ended before (REST, arXiv:2311.08252).

Earlier places are found by chains of equal n-grams, as LZ77 compressors keep them: one entry a token. The longest match
among the latest places wins, and the latest of equals. How sure a guess is follows Laplace's rule of succession: after
a match of m tokens the next one matches with probability (m + 1) / (m + 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..settings import check_ranges
from ..types import Draft, Request, Status
from .base import Ask, Source, Tools

STATE = "drafters.ngram"
MAX_MATCH = 64  # longer matches are as good: bounds the work on texts that repeat themselves
END = -1  # of a text in a corpus
MAX_SALTS = 64  # that have a corpus; the one least recently used goes


@dataclass(slots=True)
class _Index:
    """The places of a text's n-grams."""

    latest: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> where it last ended
    before: list[int] = field(default_factory=list)  # by place: where the n-gram that ends there ended before, or -1

    def update(self, text: Sequence[int], n: int) -> None:
        """Takes in what was added to the text since the last time."""
        for end in range(len(self.before), len(text)):
            gram = tuple(text[end + 1 - n : end + 1]) if end + 1 >= n else ()
            self.before.append(self.latest.get(gram, -1) if gram else -1)
            if gram:
                self.latest[gram] = end


@dataclass(slots=True)
class _Corpus:
    """Texts of requests of one salt: nobody meets what others wrote."""

    text: list[int] = field(default_factory=list)
    index: _Index = field(default_factory=_Index)
    live: dict[str, Request] = field(default_factory=dict)  # by id: they are taken in when they end

    def update(self, requests: Sequence[Request], n: int, most: int) -> None:
        """Takes in the requests that ended since the last time; of more than `most` tokens the older half goes."""
        self.live |= {request.id: request for request in requests}
        for request in [r for r in self.live.values() if r.status is Status.FINISHED]:
            self.text += [*self.live.pop(request.id).tokens, END]
        if len(self.text) > most:
            self.text, self.index = self.text[-(most // 2) :], _Index()
        self.index.update(self.text, n)


@dataclass(frozen=True, slots=True)
class NGram:
    """`k` tokens at a time, after a match of at least `min_n`; the longest match among `places` earlier ones.

    With several `branches` the next best matches that go on with another token are proposed beside it, as a tree. At
    most `corpus` tokens of requests that ended are kept for each salt; 0 for none.
    """

    k: int = 8
    min_n: int = 2
    places: int = 32
    branches: int = 1
    corpus: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, k=(1, 64), min_n=(1, 16), places=(1, 4096), branches=(1, 8), corpus=(0, 1 << 24))

    @property
    def max_drafted(self) -> int:
        return self.k * self.branches

    @property
    def sources(self) -> tuple[Source, ...]:
        return ()

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        corpora = self._corpora([ask.request for ask in asks], tools) if self.corpus else {}
        return [self._propose(ask, corpora.get(ask.request.salt)) for ask in asks]

    def _corpora(self, requests: Sequence[Request], tools: Tools) -> dict[str, _Corpus]:
        """By salt, up to date."""
        corpora: dict[str, _Corpus] = tools.state.setdefault(STATE, {})
        for salt in {request.salt for request in requests}:
            corpora[salt] = corpora.pop(salt, None) or _Corpus()
            corpora[salt].update([r for r in requests if r.salt == salt], self.min_n, self.corpus)
        for salt in list(corpora)[:-MAX_SALTS]:
            del corpora[salt]
        return corpora

    def _propose(self, ask: Ask, corpus: _Corpus | None) -> Draft | None:
        index: _Index = ask.request.state.setdefault(STATE, _Index())
        index.update(ask.request.tokens, self.min_n)
        text = [*ask.request.tokens, *ask.tail] if ask.tail else ask.request.tokens
        source, matches = text, self._matches(index, text, text)
        if corpus and not matches:
            source, matches = corpus.text, self._matches(corpus.index, corpus.text, text)
        tokens: list[int] = []
        parents: list[int] = []
        matched: list[int] = []
        for length, place in matches:
            k = min(self.k, ask.max_tokens - len(tokens))
            branch = source[place + 1 : place + 1 + k]
            while len(branch) < k:  # the place is so late that what followed it is what is being drafted
                branch.append(branch[place + 1 + len(branch) - len(source)])
            if END in branch:
                branch = branch[: branch.index(END)]
                k = len(branch)
            parents += [-1, *range(len(tokens), len(tokens) + k - 1)][:k]
            tokens += branch
            matched += range(length, length + k)
        if not tokens:
            return None
        sure = np.log((np.array(matched) + 1) / (np.array(matched) + 2)).astype(np.float32)
        tree = np.array(parents, np.int32) if parents.count(-1) > 1 else None
        return Draft(np.array(tokens, np.int32), tree, logprobs=sure)

    def _matches(self, index: _Index, source: list[int], text: list[int]) -> list[tuple[int, int]]:
        """The best matches of the end of the text in the source that go on differently: lengths, and where they end."""
        end, last = len(source) - 1, len(text) - 1
        best: dict[int, tuple[int, int]] = {}  # by the token that follows
        place = index.latest.get(tuple(text[len(text) - self.min_n :]), -1)
        for _ in range(self.places):
            if place < 0 or (self.branches == 1 and any(length == MAX_MATCH for length, _ in best.values())):
                break
            if place < end and source[place + 1] != END:
                length, most = 0, min(MAX_MATCH, place + 1, last + 1)
                while length < most and source[place - length] == text[last - length]:
                    length += 1
                if length > best.get(source[place + 1], (0, 0))[0]:
                    best[source[place + 1]] = length, place
            place = index.before[place]
        return sorted(best.values(), reverse=True)[: self.branches]

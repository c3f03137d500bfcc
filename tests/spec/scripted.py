"""Drafters that guess what a test tells them to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from fake_model import VOCAB

from narrows.drafters.base import Ask, Source, Tools
from narrows.types import Draft

Guess = Callable[[Sequence[int], int], list[int]]  # all tokens so far, how many -> at most that many


@dataclass(frozen=True, slots=True)
class Bushy:
    """A tree of up to `k` tokens: the guesses of `guess`, and beside each of them a wrong one before and after it."""

    guess: Guess
    k: int = 9
    max_drafted: int = 9
    sources: tuple[Source, ...] = ()

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: Ask) -> Draft | None:
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in self.guess(ask.request.tokens, self.k // 3):
            tokens += [(token + 1) % VOCAB, token, (token + 2) % VOCAB]
            parents += [parent] * 3
            parent = len(tokens) - 2
        k = min(self.k, ask.max_tokens)
        return Draft(np.array(tokens[:k], np.int32), np.array(parents[:k], np.int32))


@dataclass(frozen=True, slots=True)
class Scripted:
    """Drafts what `guess` says, and is as sure of it as `logprob`."""

    guess: Guess
    k: int = 4
    logprob: float = -0.01
    max_drafted: int = 4
    sources: tuple[Source, ...] = ()

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: Ask) -> Draft | None:
        tokens = self.guess([*ask.request.tokens, *ask.tail], min(self.k, ask.max_tokens))
        assert len(tokens) <= min(self.k, ask.max_tokens)
        logprobs = np.full(len(tokens), self.logprob, np.float32)
        return Draft(np.array(tokens, np.int32), logprobs=logprobs) if tokens else None

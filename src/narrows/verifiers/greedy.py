"""Keeps a drafted token when it is exactly the one that would have been chosen without a draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..sampling import SamplingParams, choose
from ..types import F32, Draft, Verdict
from .base import Rng


@dataclass(frozen=True, slots=True)
class Greedy:
    """Chooses row by row, and stops after the first token that the draft did not foresee.

    Random choices depend on the position alone, so the output with a draft is the output without one, token for token.
    """

    lossless: ClassVar[bool] = True
    wants_probs: ClassVar[bool] = False

    def verify(self, logits: F32, draft: Draft | None, params: SamplingParams, rng: Rng) -> Verdict:
        tokens: list[int] = []
        path: list[int] = []
        node: int | None = -1
        while node is not None:
            tokens.append(choose(logits[node + 1 : node + 2], params, rng, len(path)))
            children = [] if draft is None else draft.children(node)
            node = next((child for child in children if draft and draft.tokens[child] == tokens[-1]), None)
            path += [] if node is None else [node]
        return Verdict(tokens, path)

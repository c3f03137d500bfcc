"""Typical acceptance (Medusa, arXiv:2401.10774, section 2.3.1): keeps what the target might well have said. Lossy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..sampling import SamplingParams, choose, distribution
from ..types import F32, Draft, Verdict
from .base import Rng


@dataclass(frozen=True, slots=True)
class Typical:
    """Keeps a drafted token of probability at least min(`epsilon`, `delta` * exp(-entropy)) under the target.

    At temperature 0 that is the likeliest token only. With epsilon above 1 and delta at infinity nothing is kept that
    the target would not have chosen; towards 0 everything is.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    lossless: ClassVar[bool] = False
    wants_probs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")

    def verify(self, logits: F32, draft: Draft | None, params: SamplingParams, rng: Rng) -> Verdict:
        tokens: list[int] = []
        for i, guess in enumerate([] if draft is None else draft.tokens.tolist()):
            chosen = choose(logits[i : i + 1], params, rng, i)
            if chosen != guess and not self._typical(logits[i], guess, params):
                return Verdict([*tokens, chosen], num_accepted=i)
            tokens.append(guess)
        k = len(tokens)
        return Verdict([*tokens, choose(logits[k : k + 1], params, rng, k)], num_accepted=k)

    def _typical(self, logits: F32, token: int, params: SamplingParams) -> bool:
        p = distribution(logits, params)
        some = p[p > 0]
        entropy = -(some * np.log(some)).sum()
        return bool(p[token] >= min(self.epsilon, self.delta * np.exp(-entropy)))

"""Typical acceptance (Medusa, arXiv:2401.10774, section 2.3.1): keeps what the target might well have said. Lossy."""

from __future__ import annotations

from collections.abc import Collection
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
        path: list[int] = []
        node = -1
        while True:
            chosen = choose(logits[node + 1 : node + 2], params, rng, len(path))
            children = {} if draft is None else {int(draft.tokens[child]): child for child in draft.children(node)}
            token = chosen if chosen in children else self._best(logits[node + 1], children, params)
            if token is None:
                return Verdict([*tokens, chosen], path)
            node = children[token]
            tokens.append(token)
            path.append(node)

    def _best(self, logits: F32, tokens: Collection[int], params: SamplingParams) -> int | None:
        """The likeliest of the tokens, when it is typical."""
        if not tokens:
            return None
        p = distribution(logits, params)
        some = p[p > 0]
        entropy = -(some * np.log(some)).sum()
        best = max(tokens, key=lambda token: p[token])
        return best if p[best] >= min(self.epsilon, self.delta * np.exp(-entropy)) else None

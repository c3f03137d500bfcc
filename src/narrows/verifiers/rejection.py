"""Rejection sampling (Leviathan et al., arXiv:2211.17192, section 2.3; Chen et al., arXiv:2302.01318, theorem 1).

A token x drawn from q is kept with probability min(1, p(x) / q(x)); else the token comes from what of p is above q.
Either way it is distributed as p. A token that was not drawn was certain: q(x) = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..sampling import SamplingParams, choose, distribution, draw
from ..types import F32, Draft, Verdict
from .base import Rng

ACCEPT, RESIDUAL = 2, 3  # streams of random numbers


@dataclass(frozen=True, slots=True)
class Rejection:
    """Keeps as many drafted tokens as can be kept without a change of the distribution.

    The same seed gives the same answer as long as drafts have the same lengths; `greedy` gives it whatever they are.
    """

    lossless: ClassVar[bool] = True
    wants_probs: ClassVar[bool] = True

    def verify(self, logits: F32, draft: Draft | None, params: SamplingParams, rng: Rng) -> Verdict:
        tokens: list[int] = []
        for i, token in enumerate([] if draft is None else draft.tokens.tolist()):
            p = distribution(logits[i], params)
            q = np.eye(1, len(p), token)[0] if draft is None or draft.probs is None else draft.probs[i]
            if rng.uniform(i, ACCEPT) * q[token] >= p[token]:
                left = np.maximum(p - q, 0)
                tokens.append(draw(left if left.any() else p, rng.uniform(i, RESIDUAL)))
                return Verdict(tokens, num_accepted=i)
            tokens.append(token)
        k = len(tokens)
        return Verdict([*tokens, choose(logits[k : k + 1], params, rng, k)], num_accepted=k)

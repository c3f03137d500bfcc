"""Rejection sampling (Leviathan et al., arXiv:2211.17192, section 2.3; Chen et al., arXiv:2302.01318, theorem 1).

A token x drawn from q is kept with probability min(1, p(x) / q(x)); else p becomes what of it is above q, and the next
sibling in a tree has its turn (SpecInfer, arXiv:2305.09781, section 4.3), or the token is drawn from what is left.
Either way it is distributed as p. A token that was not drawn was certain: q(x) = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..sampling import SamplingParams, choose, distribution, draw
from ..trees import one_hot
from ..types import F32, Draft, Verdict
from .base import Rng

RESIDUAL, ACCEPT = 2, 3  # streams of random numbers: of what is left, and of the first sibling


@dataclass(frozen=True, slots=True)
class Rejection:
    """Keeps as many drafted tokens as can be kept without a change of the distribution.

    The same seed gives the same answer as long as drafts have the same lengths; `greedy` gives it whatever they are.
    """

    lossless: ClassVar[bool] = True
    wants_probs: ClassVar[bool] = True

    def verify(self, logits: F32, draft: Draft | None, params: SamplingParams, rng: Rng) -> Verdict:
        tokens: list[int] = []
        path: list[int] = []
        node = -1
        while draft is not None and (children := draft.children(node)):
            depth, left = len(path), distribution(logits[node + 1], params)
            for sibling, child in enumerate(children):
                token = int(draft.tokens[child])
                q = one_hot([token], len(left))[0] if draft.probs is None else draft.probs[child]
                if rng.uniform(depth, ACCEPT + sibling) * q[token] < left[token]:
                    node = child
                    break
                rest = np.maximum(left - q, 0)
                left = rest / rest.sum() if rest.any() else left
            else:
                return Verdict([*tokens, draw(left, rng.uniform(depth, RESIDUAL))], path)
            tokens.append(token)
            path.append(node)
        return Verdict([*tokens, choose(logits[node + 1 : node + 2], params, rng, len(path))], path)

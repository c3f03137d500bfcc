"""What reading a prompt gives besides its answer: log-probabilities of its tokens, and its embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .batch import num_final
from .sampling import token_logprobs
from .types import F32, F64, TARGET, Request, TokenLogprobs


def prompt_logprobs(request: Request, n: int, rows: F32) -> list[TokenLogprobs] | None:
    """Of the prompt tokens that follow the next n, from their logits [n, V]; None where they are not wanted."""
    start, k = request.cursors[TARGET].num_read, request.params.prompt_logprobs
    first = max(start, request.state.get("prompt_logprobs", 0))  # a preempted prompt is read, not reported, again
    last = min(start + n, request.num_prompt - 1)
    if k is None or first >= last:
        return None
    return token_logprobs(rows[first - start : last - start], request.tokens[first + 1 : last + 1], k)


@dataclass(slots=True)
class Pooled:
    """Final hidden states, after the last norm, of the first `num` tokens of a request, summed in their order."""

    num: int = 0
    total: F64 | None = None  # [H]

    def add(self, hidden: F32) -> None:
        """hidden [n, H] of the tokens that follow; the sum is the same however they are cut into steps."""
        rows = hidden.astype(np.float64)
        self.total = np.add.reduce(rows if self.total is None else np.vstack([self.total, rows]), axis=0)
        self.num += len(hidden)

    @property
    def mean(self) -> F32:
        """[H]"""
        assert self.total is not None
        return (self.total / self.num).astype(np.float32)


def pool_final(items: Sequence[tuple[Request, int]], final: F32 | None) -> None:
    """Adds the final hidden states [E, H] of a step to the requests that want them, before cursors move."""
    row = 0
    for request, n in items:
        if final is not None and request.pooled is not None:
            num = num_final(request, n)
            request.pooled.add(final[row : row + num])
            row += num


def is_pooled(request: Request) -> bool:
    """Whether it wanted an embedding and has read all of its prompt for it."""
    return request.pooled is not None and request.pooled.num == len(request.tokens)

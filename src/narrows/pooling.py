"""Embeddings: the mean of a prompt's final hidden states, read in the same steps as everything else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .types import F32, F64, TARGET, Request, StepPlan

POOLED = "pooled"  # in the state of a request that wants no answer but an embedding


@dataclass(slots=True)
class Pooled:
    """States after the last norm of the first `num` tokens of a request, summed in their order."""

    num: int = 0
    total: F64 | None = None  # [H]

    def add(self, states: F32) -> None:
        """states [n, H] of the tokens that follow; the sum is the same however they are cut into steps."""
        rows = states.astype(np.float64)
        self.total = np.add.reduce(rows if self.total is None else np.vstack([self.total, rows]), axis=0)
        self.num += len(states)


def num_final(request: Request, n: int) -> int:
    """How many of the last rows of its next n tokens give final states: those that were not pooled before."""
    pooled: Pooled | None = request.state.get(POOLED)
    return max(0, request.cursors[TARGET].num_read + n - pooled.num) if pooled else 0


def pool(plan: StepPlan, final: F32 | None) -> None:
    """Adds final states [E, H] to the requests that want them, before cursors move."""
    row = 0
    for request, n in plan.items if final is not None else ():
        if num := num_final(request, n):
            request.state[POOLED].add(final[row : row + num])
            row += num


def embedding(request: Request) -> F32 | None:
    """The mean [H] over all its tokens, once they are read."""
    pooled: Pooled | None = request.state.get(POOLED)
    if pooled is None or pooled.total is None or pooled.num < len(request.tokens):
        return None
    return (pooled.total / pooled.num).astype(np.float32)

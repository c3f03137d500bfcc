"""SparseGPT: prune column by column, and let the columns to come make up for what was lost.

Frantar and Alistarh 2023, https://arxiv.org/abs/2301.00774, algorithm 1; with a grid of less than 16 bits the kept
weights are quantised in the same pass (section 3.5), their rounding errors being compensated as well (GPTQ).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..types import F32
from .base import Solved
from .grid import Grid
from .linear import inverse_factor
from .pattern import Pattern


@dataclass(frozen=True, slots=True)
class SparseGPT:
    """`block` columns are updated together, and are one choice when the pattern is unstructured; `damp` is the share of
    the mean diagonal added to that of the Hessian."""

    block: int = 128
    damp: float = 0.01

    def __post_init__(self) -> None:
        if self.block < 64 or self.block % 64:
            raise ValueError(f"block is {self.block}; it must be a multiple of 64")
        if not 0 < self.damp <= 1:
            raise ValueError(f"damp is {self.damp}; it must be above 0 and at most 1")

    def prepare(self, hessian: F32) -> Any:
        return inverse_factor(hessian, self.damp)

    def solve(self, weights: F32, prepared: Any, pattern: Pattern, grid: Grid) -> Solved:
        factor, dead = prepared
        left = np.array(weights.T, order="C")  # [cols, rows]: what later columns have become
        left[dead] = 0
        cols, rows = left.shape
        mask = np.ones((cols, rows), bool)
        codes = np.empty((cols, rows), grid.dtype)
        scales = np.zeros((grid.num_groups(cols), rows), np.float32)
        diagonal = factor.diagonal()[:, None]
        span = pattern.span or self.block

        def choose(first: int, last: int) -> np.ndarray:
            return pattern.select((left[first:last] / diagonal[first:last]) ** 2)

        for start in range(0, cols, self.block):
            end = min(start + self.block, cols)
            errors = np.empty((end - start, rows), np.float32)
            for j in range(start, end):
                if (j - start) % span == 0:
                    mask[j : j + span] = choose(j, min(j + span, end))
                if grid.has_scales and j % grid.group == 0:
                    last = min(j + grid.group, cols)
                    # Masks of later spans are not certain yet, but what they would be now is near enough for a scale.
                    kept = choose(j, last) if pattern.span else mask[j:last]
                    scales[j // grid.group] = grid.scale(left[j:last], kept)
                scale = scales[j // grid.group] if grid.has_scales else np.float32(1)
                codes[j] = np.where(mask[j], grid.encode(left[j], scale), grid.zero)
                error = np.divide(left[j] - grid.decode(codes[j], scale), diagonal[j], out=errors[j - start])
                left[j + 1 : end] -= factor[j, j + 1 : end, None] * error
            left[end:] -= factor[start:end, end:].T @ errors
        return Solved(
            np.ascontiguousarray(mask.T), np.ascontiguousarray(codes.T), np.ascontiguousarray(scales.T, np.float16)
        )

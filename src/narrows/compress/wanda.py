"""Wanda: prune by weight times the norm of its input, and change nothing else.

Sun et al. 2023, https://arxiv.org/abs/2306.11695, equation 1: outputs are compared with themselves only. Kept weights
are rounded to the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..types import F32
from .base import Solved
from .grid import Grid
from .pattern import Pattern


@dataclass(frozen=True, slots=True)
class Wanda:
    def prepare(self, hessian: F32) -> Any:
        return np.sqrt(hessian.diagonal())

    def solve(self, weights: F32, prepared: Any, pattern: Pattern, grid: Grid) -> Solved:
        rows, cols = weights.shape
        saliency = np.abs(weights) * prepared
        if pattern.span:
            mask = np.ascontiguousarray(pattern.select(np.ascontiguousarray(saliency.T)).T)
        else:
            mask = np.stack([pattern.select(row[:, None])[:, 0] for row in saliency])
        scales = np.zeros((rows, grid.num_groups(cols)), np.float32)
        for g in range(scales.shape[1]):
            part = slice(g * grid.group, (g + 1) * grid.group)
            scales[:, g] = grid.scale(weights[:, part].T, mask[:, part].T)
        wide = np.repeat(scales, grid.group, axis=1)[:, :cols] if grid.has_scales else np.float32(1)
        codes = np.where(mask, grid.encode(weights, wide), grid.zero).astype(grid.dtype)
        return Solved(mask, codes, scales.astype(np.float16))

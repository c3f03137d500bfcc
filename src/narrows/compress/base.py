"""What a solver is: from a matrix and the inputs it meets to the weights that are kept, and their codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..types import F32
from .grid import Grid
from .linear import energy
from .pattern import Pattern

Bool = npt.NDArray[np.bool_]


class CompressError(ValueError):
    """A compression that cannot be done as asked; the message names the option or tensor, and the fix."""


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """A compressed matrix [rows, cols]: weight = decode(code) where the mask is set, else 0."""

    mask: Bool  # [rows, cols]
    codes: npt.NDArray[Any]  # [rows, cols] as `Grid.encode` gives them; where the mask is not set, that of zero
    scales: npt.NDArray[np.float16]  # [rows, groups of columns]; no columns when the grid has no scales

    def weights(self, grid: Grid) -> F32:
        """The matrix as float32 [rows, cols]."""
        wide = np.repeat(self.scales.astype(np.float32), grid.group, axis=1)[:, : self.codes.shape[1]]
        return grid.decode(self.codes, wide if grid.has_scales else np.float32(1)) * self.mask


class Solver(Protocol):
    """One file of this folder and one line of its registry; a frozen dataclass whose fields are its settings."""

    def prepare(self, hessian: F32) -> Any:
        """What all matrices with the same input share, from its Hessian [cols, cols]."""
        ...

    def solve(self, weights: F32, prepared: Any, pattern: Pattern, grid: Grid) -> Solved:
        """Compresses weights [rows, cols], whose columns are those of the Hessian."""
        ...


def relative_loss(weights: F32, solved: F32, hessian: F32) -> float:
    """|| (W - W') X ||^2 / || W X ||^2 of matrices [rows, cols], with X X^T in proportion to the Hessian."""
    whole = energy(weights, hessian)
    return energy(weights - solved, hessian) / whole if whole > 0 else 0.0

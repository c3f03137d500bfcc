"""The linear algebra of the solvers, on numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..types import F32

SMALL = 128  # triangles that are inverted directly


def inverse_factor(hessian: F32, damp: float) -> tuple[F32, npt.NDArray[np.bool_]]:
    """Upper triangular U [n, n] with U^T U = (H + damp * mean(diag H) * I)^-1, and which inputs are dead.

    A dead input (H_jj = 0) is always zero: its diagonal is set to 1, and its weights can go. In float64.
    Raises ValueError when the Hessian is not finite.
    """
    h = hessian.astype(np.float64)
    if not np.isfinite(h).all():
        raise ValueError("the inputs seen while calibrating are not finite: the model overflows on this text")
    diagonal = np.einsum("ii->i", h)
    dead = diagonal == 0
    diagonal[dead] = 1
    diagonal += damp * diagonal.mean()
    # With rows and columns in reverse, H = R R^T for an upper triangle R, and then U = R^-1.
    lower: npt.NDArray[Any] = np.linalg.cholesky(h[::-1, ::-1])
    del h
    invert_lower(lower)
    return np.ascontiguousarray(lower[::-1, ::-1], np.float32), dead


def invert_lower(lower: npt.NDArray[Any]) -> None:
    """Inverts a lower triangular matrix [n, n] where it is, by halves: nearly all of it is matrix products."""
    n = len(lower)
    if n <= SMALL:
        lower[:] = np.tril(np.linalg.inv(lower))
        return
    half = n // 2
    top, side, bottom = lower[:half, :half], lower[half:, :half], lower[half:, half:]
    invert_lower(top)
    invert_lower(bottom)
    side[:] = -(bottom @ (side @ top))

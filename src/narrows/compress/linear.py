"""The linear algebra of the solvers, on numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..types import F32

SMALL = 128  # triangles that are inverted directly
BLOCK = 256  # columns or rows of a product with a triangle; what is zero beyond them is not read


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
    factor_inverse(h)
    return h.astype(np.float32), dead


def factor_inverse(h: npt.NDArray[Any]) -> None:
    """Puts the upper triangular U with U^T U = H^-1 where H [n, n] was.

    By halves, so that nearly all of it is matrix products: with R = U^-1, H = R R^T, and
    H22 = R22 R22^T, H12 = R12 R22^T, H11 - R12 R12^T = R11 R11^T, U12 = -U11 R12 U22.
    """
    n = len(h)
    if n <= SMALL:
        lower = np.linalg.cholesky(h[::-1, ::-1])
        h[:] = np.triu(np.linalg.inv(lower)[::-1, ::-1])
        return
    half = n // 2
    top, side, bottom = h[:half, :half], h[:half, half:], h[half:, half:]
    factor_inverse(bottom)
    for i in range(0, n - half, BLOCK):  # side @ bottom.T; what it still needs is not written yet
        side[:, i : i + BLOCK] = side[:, i:] @ bottom[i : i + BLOCK, i:].T
    top -= side @ side.T
    factor_inverse(top)
    for i in reversed(range(0, n - half, BLOCK)):  # side @ bottom
        side[:, i : i + BLOCK] = side[:, : i + BLOCK] @ bottom[: i + BLOCK, i : i + BLOCK]
    for i in range(0, half, BLOCK):  # -top @ side
        side[i : i + BLOCK] = -(top[i : i + BLOCK, i:] @ side[i:])
    h[half:, :half] = 0


def energy(weights: F32, hessian: F32) -> float:
    """tr(W H W^T), of weights [rows, n] and a symmetric H [n, n] of which one triangle is read."""
    total = 0.0
    for i in range(0, len(hessian), BLOCK):
        own, h = weights[:, i : i + BLOCK], hessian[: i + BLOCK, i : i + BLOCK]
        product = 2 * (weights[:, :i] @ h[:i]) + own @ h[i:]
        total += float(np.einsum("ij,ij->", product, own, dtype=np.float64))
    return total

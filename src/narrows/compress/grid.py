"""The values that kept weights may take: integers times a float16 scale for a group of columns, or bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..types import F32

BITS = (2, 3, 4, 5, 6, 8, 16)
GROUPS = (32, 64)
SHRINK = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)  # of a scale: at few bits, clipping the largest weight pays


@dataclass(frozen=True, slots=True)
class Grid:
    """``scale * (code - 2^(bits-1))``, the symmetric integer formats of `narrows.weights`; 16 bits are bfloat16."""

    bits: int = 8
    group: int = 32  # columns that share a scale

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"--bits is {self.bits}; it must be one of {', '.join(map(str, BITS))}")
        if self.group not in GROUPS:
            raise ValueError(f"--group is {self.group}; it must be one of {', '.join(map(str, GROUPS))}")

    @property
    def has_scales(self) -> bool:
        return self.bits < 16

    @property
    def zero(self) -> int:
        """The code of 0."""
        return 1 << (self.bits - 1) if self.has_scales else 0

    @property
    def dtype(self) -> type[Any]:
        return np.uint8 if self.has_scales else np.uint16

    def num_groups(self, cols: int) -> int:
        return -(-cols // self.group) if self.has_scales else 0

    def scale(self, weights: F32, kept: npt.NDArray[np.bool_]) -> F32:
        """Scales [rows], float16 values, of one group of columns [group, rows]: those of least squared error.

        The largest weight gets the code that only one sign has, as in llama.cpp's symmetric types, so a scale may be
        negative.
        """
        w = weights * kept
        largest = np.take_along_axis(w, np.abs(w).argmax(0)[None], 0)[0] / -self.zero
        if self.bits > 5:
            return _half(largest)
        best, least = _half(largest), np.full(w.shape[1], np.inf, np.float32)
        for share in SHRINK:
            scale = _half(largest * np.float32(share))
            error = ((self.decode(self.encode(w, scale), scale) - w) ** 2).sum(0)
            better = error < least
            best, least = np.where(better, scale, best), np.where(better, error, least)
        return best

    def encode(self, weights: F32, scale: F32 | np.float32) -> npt.NDArray[Any]:
        """Codes of weights, of the same shape; scales must broadcast with them."""
        if not self.has_scales:
            raw = np.ascontiguousarray(weights).view(np.uint32)
            return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
        return np.clip(np.rint(weights * inverse) + self.zero, 0, 2 * self.zero - 1).astype(np.uint8)

    def decode(self, codes: npt.NDArray[Any], scale: F32 | np.float32) -> F32:
        """The weights of codes."""
        if not self.has_scales:
            return (codes.astype(np.uint32) << 16).view(np.float32)
        return (codes.astype(np.float32) - np.float32(self.zero)) * scale


def _half(values: F32) -> F32:
    return values.astype(np.float16).astype(np.float32)

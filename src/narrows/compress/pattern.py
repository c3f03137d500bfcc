"""Which weights may stay: N of every M along the inputs, or a share of them anywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..types import F32

SPANS = (4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Pattern:
    """``N:M`` keeps N of every M consecutive inputs of an output; M 0 keeps a share of 1 - ratio, wherever it lies."""

    keep: int = 0
    span: int = 0
    ratio: float = 0.0  # pruned

    @classmethod
    def parse(cls, text: str, ratio: float = 0.5) -> Pattern:
        """From ``2:4``, ``unstructured`` (with `ratio`) or ``dense``. Raises ValueError."""
        if text == "dense":
            return cls()
        if text == "unstructured":
            if not 0 < ratio < 1:
                raise ValueError(f"--ratio is {ratio}; the share to prune must be above 0 and below 1")
            return cls(ratio=ratio)
        keep, colon, span = text.partition(":")
        if colon and keep.isdecimal() and span.isdecimal() and int(span) in SPANS and 0 < int(keep) < int(span):
            return cls(int(keep), int(span), 1 - int(keep) / int(span))
        raise ValueError(
            f"--pattern {text[:40]!r} is not supported: use N:M with M one of {', '.join(map(str, SPANS))} "
            "(2:4, 4:8, 8:16, 16:32), unstructured, or dense"
        )

    def __str__(self) -> str:
        return f"{self.keep}:{self.span}" if self.span else "unstructured" if self.ratio else "dense"

    def at(self, ratio: float) -> Pattern:
        """The same pattern with another share pruned; only where the share is free."""
        return replace(self, ratio=ratio)

    def check(self, name: str, cols: int) -> None:
        """Raises ValueError when a matrix has no whole number of spans."""
        if self.span and cols % self.span:
            raise ValueError(
                f"tensor {name!r} has {cols} inputs, which --pattern {self} does not divide; use a span that does, "
                "or --pattern unstructured"
            )

    def select(self, saliency: F32) -> npt.NDArray[np.bool_]:
        """The entries [cols, rows] to keep: the most salient, exactly as many as the pattern says.

        N:M chooses within each span of each row (cols is a multiple of it), else the whole array is one choice.
        """
        kept = np.ones(saliency.shape, bool)
        if self.span:
            spans = saliency.reshape(-1, self.span, saliency.shape[1]).swapaxes(1, 2)
            order = np.argpartition(np.ascontiguousarray(spans), self.span - self.keep - 1, axis=2)
            chosen = np.ones(spans.shape, bool)
            np.put_along_axis(chosen, order[..., : self.span - self.keep], False, axis=2)
            return np.ascontiguousarray(chosen.swapaxes(1, 2)).reshape(saliency.shape)
        count = round(self.ratio * saliency.size)
        if count:
            kept.reshape(-1)[np.argpartition(saliency, count - 1, axis=None)[:count]] = False
        return kept

"""A model on disk: what it declares, and its tensors packed as a stack wants them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoints import Checkpoint, open_checkpoint
from .checkpoints.compressed import Compressed, open_compressed
from .models import declare, hub
from .types import ModelSpec, TensorSource
from .weights import WeightError, load_weights
from .weights.compressed import load_compressed


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk; a compressed one has matrices of its own, and the rest from its parent."""

    path: Path
    ckpt: Checkpoint
    compressed: Compressed | None
    spec: ModelSpec
    sources: Mapping[str, TensorSource]

    @classmethod
    def open(cls, model: str | os.PathLike[str], progress: bool) -> ModelFiles:
        path = hub.resolve(model, progress=progress)
        parent = hub.parent(path)
        ckpt = open_checkpoint(parent)
        return cls(path, ckpt, open_compressed(path) if parent != path else None, *declare(ckpt))

    @property
    def identity(self) -> str:
        """Of everything that is computed with."""
        return f"{self.ckpt.identity()} {self.compressed.identity() if self.compressed else ''}"

    def dense(self, weights: str, cache: bool, num_threads: int) -> Mapping[str, Any]:
        """The tensors of the unmodified model, packed; `weights` is a format, or "auto"."""
        return load_weights(self.ckpt, self.spec, self.sources, weights=weights, cache=cache, num_threads=num_threads)

    def tensors(
        self, weights: str, cache: bool, num_threads: int, dense: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """Packed; `weights` is a format, or a way to read the model's own; `dense`, if loaded, its unmodified ones."""
        ckpt, spec, compressed, sources = self.ckpt, self.spec, self.compressed, self.sources
        if compressed is None:
            return self.dense(weights, cache, num_threads)
        for name, shape in compressed.shapes.items():
            source = sources.get("embed" if name == "head" and spec.tied_head else name)
            if source is None or source.shape != shape:
                raise WeightError(f"{compressed.path}: matrix {name!r} of {shape} has no place in {ckpt.path}")
        if dense is None:
            rest = {name: source for name, source in sources.items() if name not in compressed.shapes}
            dense = load_weights(ckpt, spec, rest, cache=False, num_threads=num_threads)
        return {**dense, **load_compressed(compressed, weights, cache=cache, num_threads=num_threads)}

"""Heads with random weights, for models that are on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from narrows.checkpoints.compressed import sha256
from narrows.checkpoints.head import VECTORS, shapes
from narrows.train.artifact import write_head
from narrows.types import F32, ModelSpec


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, F32]:
    """Matrices and vectors by name."""
    rng = np.random.default_rng(seed)
    weights = {n: (rng.standard_normal(s) / np.sqrt(s[1])).astype(np.float32) for n, s in shapes(spec).items()}
    return weights | {n: rng.uniform(0.5, 1.5, spec.hidden_size).astype(np.float32) for n in VECTORS}


def write_tiny_head(out: Path, model: Path, spec: ModelSpec, **info: Any) -> Path:
    """A head that drafts every second token of the vocabulary; `info` goes into its record."""
    parent = {"name": model.stem, "file": model.name, "sha256": sha256(model)}
    record = {"parent": parent, "layers": [0, 1, spec.num_layers], **info}
    write_head(out, random_weights(spec), range(0, spec.vocab_size, 2), spec.vocab_size, record)
    return out

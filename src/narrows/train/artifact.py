"""Writing a trained head: int8 matrices, as compressed models have them, and what they were made of."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints.compressed import VERSION, WEIGHTS
from ..checkpoints.head import INFO, KIND, VOCABULARY, pack_ids
from ..compress.artifact import tensors_of, write, write_tensors
from ..compress.base import Solved
from ..compress.grid import Grid
from ..types import F32

GRID = Grid(8, 64)


def write_head(
    out: Path,
    weights: Mapping[str, F32],
    ids: Collection[int],
    vocab_size: int,
    info: Mapping[str, Any],
) -> None:
    """A folder `out`, whole or not at all, in place of a head that is there. `weights` are matrices and vectors."""
    folder = out.with_name(out.name + ".tmp")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    matrices = {name: w for name, w in weights.items() if w.ndim == 2}
    tensors = {VOCABULARY: pack_ids(ids, vocab_size)}
    tensors |= {name: w.astype(np.float16) for name, w in weights.items() if w.ndim == 1}
    for name, w in matrices.items():
        tensors |= tensors_of(name, _quantised(w), GRID)
    write_tensors(folder / WEIGHTS, tensors)
    record = {"kind": KIND, "version": VERSION, "bits": GRID.bits, "group": GRID.group, **info}
    record["matrices"] = {name: {"shape": list(w.shape)} for name, w in matrices.items()}
    write(folder / INFO, [json.dumps(record, indent=2, allow_nan=False).encode() + b"\n"])
    shutil.rmtree(out, ignore_errors=True)
    os.replace(folder, out)


def _quantised(weights: F32) -> Solved:
    kept, group = np.ones(weights.shape, bool), GRID.group
    starts = range(0, weights.shape[1], group)
    scales = np.stack([GRID.scale(weights[:, i : i + group].T, kept[:, i : i + group].T) for i in starts], axis=1)
    wide = np.repeat(scales, group, axis=1)[:, : weights.shape[1]]
    return Solved(kept, GRID.encode(weights, wide), scales.astype(np.float16))

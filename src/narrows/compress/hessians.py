"""H = 2/N X X^T of the inputs of every matrix, in as few readings of the texts as the memory allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..machine import keep
from ..types import F32, ForwardBatch, ModelSpec
from . import sequences

if TYPE_CHECKING:
    from narrows import LLM

Input = tuple[int, int]  # (layer, which of the layer's inputs); layer num_layers, which 4, is that of the head

MATRICES = {"q": 0, "k": 0, "v": 0, "o": 1, "gate": 2, "up": 2, "down": 3}  # of a layer, and the input of each
INPUT_NAMES = ("qkv", "o", "gate/up", "down", "head")
HEAD = 4
ROWS = 512  # most tokens of a forward, but for one sequence that is longer: their inputs are held in memory
TILE = 256  # columns of H computed at a time: what lies below the diagonal is not


def input_of(name: str, num_layers: int) -> Input:
    """The input of a matrix by its canonical name, ``layers.3.down`` or ``head``."""
    if name == "head":
        return num_layers, HEAD
    _, layer, part = name.split(".")
    return int(layer), MATRICES[part]


def width(spec: ModelSpec, which: int) -> int:
    """Values in an input."""
    return (spec.hidden_size, spec.num_heads * spec.head_dim, spec.hidden_size, spec.ffn_size, spec.hidden_size)[which]


class Hessian:
    """Sums x x^T over rows in float32; the rounding of so few large sums is far below the noise of the sample.

    Held in strips of TILE rows, each from the diagonal on: half of the memory of the whole.
    """

    def __init__(self, size: int) -> None:
        self._strips = [np.zeros((min(TILE, size - i), size - i), np.float32) for i in range(0, size, TILE)]
        self._size = size
        self.count = 0

    def add(self, rows: F32) -> None:
        """rows [n, size]"""
        for k, strip in enumerate(self._strips):
            i = k * TILE
            strip += rows[:, i : i + TILE].T @ rows[:, i:]
        self.count += len(rows)

    def finish(self) -> F32:
        """2/N X X^T [size, size]; the sum is gone."""
        h = np.empty((self._size, self._size), np.float32)
        for i in reversed(range(0, self._size, TILE)):
            h[i : i + TILE, i:] = self._strips.pop()
            h[i + TILE :, i : i + TILE] = h[i : i + TILE, i + TILE :].T
        h *= 2 / max(self.count, 1)
        return h


@dataclass(frozen=True, slots=True)
class Kept:
    """A Hessian in a file, where another recipe of the same calibration finds it."""

    path: Path

    def finish(self) -> F32:
        return np.load(self.path)

    def keep(self, hessian: F32) -> None:
        keep(self.path, lambda file: np.save(file, hessian))


def collect(
    llm: LLM, chosen: list[sequences.Sequence], wanted: Sequence[Input], advance: Callable[[int], None]
) -> dict[Input, Hessian]:
    """The Hessian of each input over the rows of the sequences that count. `advance` is told of rows read."""
    spec = llm.loaded.spec
    sums = {key: Hessian(width(spec, key[1])) for key in wanted}
    for batch, rows in forwards(llm, chosen):
        for key, inputs in zip(wanted, llm.loaded.model.inputs(batch, wanted), strict=True):
            sums[key].add(inputs)
        advance(rows)
    return sums


def forwards(llm: LLM, chosen: list[sequences.Sequence]) -> Iterator[tuple[ForwardBatch, int]]:
    """Batches that read whole sequences and ask for the rows that count, and how many these are."""
    pool = llm.engine.pool
    for batch in sequences.batches(chosen, ROWS):
        counts = [len(s.tokens) for s in batch]
        ends = np.cumsum(counts, dtype=np.int32)
        starts = ends - np.asarray(counts, np.int32)
        rows = [
            np.arange(start + s.first, end, dtype=np.int32) for s, start, end in zip(batch, starts, ends, strict=True)
        ]
        pages = [pool.alloc(pool.pages_for(n)) for n in counts]
        table = np.zeros((len(batch), max(map(len, pages))), np.int32)
        for row, own in zip(table, pages, strict=True):
            row[: len(own)] = own
        try:
            yield (
                ForwardBatch(
                    tokens=np.concatenate([np.asarray(s.tokens, np.int32) for s in batch]),
                    positions=np.concatenate([np.arange(n, dtype=np.int32) for n in counts]),
                    cu_seqlens=np.concatenate([np.zeros(1, np.int32), ends]),
                    context_lens=np.asarray(counts, np.int32),
                    page_table=table,
                    logit_rows=np.concatenate(rows),
                ),
                sum(s.num_rows for s in batch),
            )
        finally:
            for own in pages:
                pool.free(own)


def passes(spec: ModelSpec, layers: Sequence[int], memory: int) -> list[list[int]]:
    """Layers in groups whose Hessians fit in `memory` bytes, beside what solving one takes; the head is num_layers.

    A group costs a reading of all texts.
    """
    sizes = [width(spec, which) for which in range(HEAD)]
    # Factoring holds the largest Hessian in float64, then in float32 too, and has room for products.
    each = sum(2 * n * (n + TILE) + 4 * n * ROWS for n in sizes)
    most = max(1, (memory - 16 * max(sizes) ** 2) // each)
    count = -(-len(layers) // most)
    return [part.tolist() for part in np.array_split(np.asarray(layers, int), count)] if layers else []

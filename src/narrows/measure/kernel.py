"""How fast packed weights are multiplied, dense and sparse in turn, on more of them than a cache holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from narrows import _native
from narrows.compress.pattern import Pattern
from narrows.measure.samples import Samples
from narrows.weights import Format, Packed, WeightError, parse_format
from narrows.weights.compressed import pack_codes, pack_kept

SHAPE = (2048, 2048)  # [rows, cols] of each matrix


def formats(text: str) -> list[Format]:
    """Of "int8,int4:g64,bf16". Raises WeightError for one that has no sparse form."""
    found = [parse_format(name) for name in text.split(",")]
    for fmt in found:
        if fmt.minimum or fmt.group == 16 or fmt.type in ("f32", "f16"):
            raise WeightError(f"{fmt} has no sparse form; use int8, int6, int5, int4, int3 or int2 (g32, g64), or bf16")
    return found


def kernels(
    wanted: Iterable[Format], *, pattern: Pattern, batches: Iterable[int], threads: int, num_bytes: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """For each format and number of rows of activations, a row dense and one sparse, from passes in turn.

    Every pass reads matrices of `num_bytes` bytes
    when dense. Rows carry weights/s, bytes per weight and bytes/s; `dense_ratio` is the speed over that of the dense
    pass before it.
    """
    for fmt in wanted:
        plain, sparse = matrices(fmt, pattern, num_bytes)
        for batch in batches:
            times: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(repeats + 1):
                for kind, those in ((False, plain), (True, sparse)):
                    seconds = _native.time_products(those, batch, threads, 1)
                    if turn:  # the first pass of each finds its memory cold
                        times[kind] += seconds
            for kind, those in ((False, plain), (True, sparse)):
                count = len(those) * SHAPE[0] * SHAPE[1]
                size = sum(m.data.size for m in those)
                ratios = Samples(tuple(d / t for d, t in zip(times[False], times[kind], strict=True)))
                yield {
                    "format": str(those[0].format),
                    "pattern": str(pattern) if kind else "dense",
                    "batch": batch,
                    "weights_per_second": Samples(tuple(times[kind])).rate(count).json(),
                    "bytes_per_weight": size / count,
                    "bytes_per_second": size / Samples(tuple(times[kind])).median,
                    "dense_ratio": ratios.json(),
                }


def matrices(fmt: Format, pattern: Pattern, num_bytes: int) -> tuple[list[Packed], list[Packed]]:
    """Copies of a random matrix, in all `num_bytes` when dense, and as many pruned at random as the pattern says."""
    rng, (rows, cols) = np.random.default_rng(0), SHAPE
    mask = pattern.select(rng.random((cols, rows), np.float32)).T
    plain = Packed(fmt, rows, cols, _native.alloc_huge(fmt.packed_bytes(rows, cols)))
    scales = np.zeros((rows, 0), np.float16)
    if fmt.type:
        values = rng.standard_normal(SHAPE).astype(np.float32) * mask
        _native.pack_float(fmt, values, plain.data, 1)
        codes = (values.view(np.uint32) >> 16).astype(np.uint16)
    else:
        codes = np.where(mask, rng.integers(1 << fmt.bits, size=SHAPE), 1 << (fmt.bits - 1)).astype(np.uint8)
        scales = rng.uniform(0.5, 1, (rows, cols // fmt.group)).astype(np.float16)
        plain.data[:] = pack_codes(codes, scales, fmt).reshape(-1)
    sparse = pack_kept(codes, mask, scales, replace(fmt, sparse=True))
    count = max(1, num_bytes // plain.data.size)
    return [_copy(plain) for _ in range(count)], [_copy(sparse) for _ in range(count)]


def _copy(matrix: Packed) -> Packed:
    data = _native.alloc_huge(matrix.data.size)
    data[:] = matrix.data
    return replace(matrix, data=data)

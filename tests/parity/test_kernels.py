"""Products of packed matrices: within a derived bound, and the same bits on every level and in any company."""

from __future__ import annotations

import numpy as np
import pytest
from test_pack import INTEGERS, empty, random_blocks

from narrows import _native
from narrows.checkpoints.gguf import GGML_TYPES
from narrows.weights import Format, Packed, parse_format, unpack
from narrows.weights.load import native_format

UNIT = 32
NUM_X = 37  # two blocks of 16 rows and a rest
SHAPES = [(1, 32), (17, 50), (33, 96), (48, 200), (16, 1216)]
TWO_LEVEL = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
EPS = 2.0**-24


def pack(name: str, rows: int, cols: int) -> Packed:
    if name in TWO_LEVEL:
        packed = empty(native_format(name), rows, cols)
        raw = random_blocks(name, rows, cols).reshape(-1)
        _native.pack_gguf(GGML_TYPES[name], raw, rows, cols, packed.data, 1)
        return packed
    packed = empty(parse_format(name), rows, cols)
    w = np.random.default_rng(rows).standard_normal((rows, cols)).astype(np.float32)
    _native.pack_float(packed.format, w, packed.data, 1)
    return packed


def activations(num: int, cols: int) -> np.ndarray:
    """Rows as models have them: of any size, with values that stand out, a row of nothing and one of a single value."""
    rng = np.random.default_rng(num)
    x = rng.standard_normal((num, cols)) * 10.0 ** rng.integers(-3, 4, (num, 1))
    x *= np.where(rng.random(x.shape) < 0.01, 40, 1)
    x[num // 2] = 0
    x[num // 3] = np.eye(cols)[cols // 2]
    return x.astype(np.float32)


def rounding(x: np.ndarray) -> np.ndarray:
    """The most that quantising may change each value of x [T, cols] by.

    A unit's step is its largest value over 127 * 256. Rounding costs half of it; before, a value divided by the step in
    float32 is off by roundings of its own.
    """
    units = np.pad(x.astype(np.float64), ((0, 0), (0, -x.shape[1] % UNIT))).reshape(len(x), -1, UNIT)
    step = np.abs(units).max(-1, keepdims=True) * (0.5 / (127 * 256) + 4 * EPS)
    return np.broadcast_to(step, units.shape).reshape(len(x), -1)[:, : x.shape[1]]


def bound(fmt: Format, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The most that y [T, rows] may be off: what quantising x costs, and the roundings of the sums in float32.

    Integer formats multiply by the scales of weight and unit (4 roundings) and add a sum per 16 columns; the terms of a
    format with a minimum are up to four times the group's largest weight. Floats round once per column.
    """
    size = np.abs(w).astype(np.float64)
    if fmt.type:
        return (w.shape[1] + 2) * EPS * (np.abs(x) @ size.T)
    group = np.pad(size, ((0, 0), (0, -w.shape[1] % 256))).reshape(len(w), -1, fmt.group)
    largest = np.broadcast_to(group.max(-1, keepdims=True), group.shape).reshape(len(w), -1)[:, : w.shape[1]]
    terms = w.shape[1] / 16 + 4
    return rounding(x) @ size.T + 4 * terms * EPS * (np.abs(x) @ largest.T)


@pytest.mark.parametrize("name", [*INTEGERS, *TWO_LEVEL, "f32", "f16", "bf16"])
def test_products(name: str) -> None:
    for rows, cols in [(17, 256), (33, 768)] if name in TWO_LEVEL else SHAPES:
        packed, x = pack(name, rows, cols), activations(NUM_X, cols)
        w = unpack(packed)
        y = _native.matmul(packed, x)
        error = np.abs(y - x.astype(np.float64) @ w.astype(np.float64).T)
        assert (error <= bound(packed.format, w, x)).all(), (rows, cols)
        for isa in _native.isas():
            assert np.array_equal(_native.matmul(packed, x, isa), y), (isa, rows, cols)
            for start, end in ((0, 1), (3, 5), (9, 12), (12, 16), (4, 11), (20, 28), (20, 36), (36, 37)):
                some = _native.matmul(packed, x[start:end], isa)
                assert np.array_equal(some, y[start:end]), (isa, rows, cols, start, end)


def test_bound_is_not_idle() -> None:
    """Errors come near what the bound allows: a kernel that lost a bit of an activation would break it."""
    packed = pack("int8", 16, 32)  # one unit
    w, x = unpack(packed), activations(500, 32)
    error = np.abs(_native.matmul(packed, x) - x.astype(np.float64) @ w.astype(np.float64).T)
    assert (error / np.maximum(bound(packed.format, w, x), 1e-30)).max() > 0.4


def test_a_lost_row_stays_lost_and_harms_no_other() -> None:
    packed, x = pack("int4", 16, 64), activations(5, 64)
    clean = _native.matmul(packed, x)
    x[3, 7] = np.inf
    y = _native.matmul(packed, x)
    assert np.isnan(y[3]).all()
    assert np.array_equal(np.delete(y, 3, 0), np.delete(clean, 3, 0))


def test_misfits_are_refused() -> None:
    packed = pack("int4", 16, 64)
    with pytest.raises(ValueError, match="as many columns as the matrix"):
        _native.matmul(packed, np.zeros((1, 63), np.float32))
    with pytest.raises(ValueError, match="ISA level `sse9` is not one of this machine's"):
        _native.matmul(packed, np.zeros((1, 64), np.float32), "sse9")

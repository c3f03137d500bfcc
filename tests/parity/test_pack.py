"""The packer against two oracles: gguf's dequantisation for what a file means, numpy's unpack for where bytes lie."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from narrows import _native
from narrows.checkpoints.gguf import GGML_TYPES, TENSOR_TYPES
from narrows.weights import FORMATS, Format, Packed, parse_format, unpack
from narrows.weights.load import native_format

SHAPES = [(1, 256), (15, 512), (16, 768), (17, 256), (33, 1280)]
FLAT_SHAPES = [(1, 32), (17, 96), (33, 160), (16, 320)]
INTEGERS = [f"int{b}:g{g}{m}" for b in (2, 3, 4, 5, 6, 8) for g in (16, 32, 64) for m in ("", ":min")]


def empty(fmt: Format, rows: int, cols: int) -> Packed:
    """A destination with every byte set, so that what the packer leaves alone shows."""
    data = _native.alloc_huge(fmt.packed_bytes(rows, cols))
    data[:] = 0xA5
    return Packed(fmt, rows, cols, data)


def random_blocks(dtype: str, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Random bytes with scales that are ordinary float16 numbers: uint8 [rows, bytes of a row]."""
    rng = np.random.default_rng(seed)
    _, block, size = TENSOR_TYPES[GGML_TYPES[dtype]]
    blocks = rng.integers(0, 256, (rows, cols // block, size), np.uint8)
    halves = {
        **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0"), (0,)),
        **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
        "Q2_K": (80, 82),
        "Q3_K": (108,),
        "Q6_K": (208,),
    }
    for at in halves.get(dtype, ()):
        values = rng.standard_normal(blocks.shape[:2]).astype("<f2")
        blocks[..., at : at + 2] = values.view(np.uint8).reshape(*values.shape, 2)
    if dtype in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        return gguf.quantize(values, gguf.GGMLQuantizationType[dtype]).view(np.uint8).reshape(rows, -1)
    return blocks.reshape(rows, -1)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype == np.float32 and np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("dtype", GGML_TYPES)
def test_gguf_types_keep_every_bit(dtype):
    shapes = SHAPES if TENSOR_TYPES[GGML_TYPES[dtype]][1] == 256 else [*SHAPES, *FLAT_SHAPES]
    for rows, cols in shapes:
        raw = random_blocks(dtype, rows, cols)
        packed = empty(native_format(dtype), rows, cols)
        _native.pack_gguf(GGML_TYPES[dtype], raw.reshape(-1), rows, cols, packed.data, 2)
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[dtype]).astype(np.float32)
        assert same_bits(unpack(packed), expected), (rows, cols)
        assert all(same_bits(_native.unpack_row(packed, n), expected[n]) for n in range(rows)), (rows, cols)


@pytest.mark.parametrize("dtype", ["Q4_K", "Q6_K", "Q5_1", "BF16"])
def test_packing_does_not_depend_on_threads_or_on_what_was_there(dtype):
    raw = random_blocks(dtype, 53, 512)
    images = []
    for threads in (1, 2, 7):
        packed = empty(native_format(dtype), 53, 512)
        packed.data[:] = threads
        _native.pack_gguf(GGML_TYPES[dtype], raw.reshape(-1), 53, 512, packed.data, threads)
        images.append(packed.data.tobytes())
    assert images[0] == images[1] == images[2]


@pytest.mark.parametrize("name", [*INTEGERS, "f32", "f16", "bf16"])
def test_native_and_reference_unpack_agree(name):
    fmt = parse_format(name)
    for rows, cols in [(1, 16), (17, 48), (16, 64), (33, 200), (5, 31)]:
        w = np.random.default_rng(1).standard_normal((rows, cols)).astype(np.float32)
        packed = empty(fmt, rows, cols)
        _native.pack_float(fmt, w, packed.data, 2)
        out = unpack(packed)
        assert out.shape == w.shape
        assert all(same_bits(_native.unpack_row(packed, n), out[n]) for n in range(rows)), (rows, cols)


def pack(fmt: Format, w: np.ndarray) -> np.ndarray:
    packed = empty(fmt, *w.shape)
    _native.pack_float(fmt, w, packed.data, 2)
    return unpack(packed)


@pytest.mark.parametrize("name", INTEGERS)
def test_rounding_beats_the_plain_scale(name):
    """Per group, the error is at most that of the scale that just holds the extremes (with float16 scales)."""
    fmt = parse_format(name)
    w = np.random.default_rng(2).standard_normal((33, 320)).astype(np.float32)
    error = ((pack(fmt, w) - w) ** 2).reshape(33, -1, fmt.group).sum(-1)
    groups = w.reshape(33, -1, fmt.group)
    lo, hi = np.minimum(groups.min(-1, keepdims=True), 0), groups.max(-1, keepdims=True)
    if fmt.minimum:
        m = lo.astype(np.float16).astype(np.float32)
        s = ((hi - lo) / (2**fmt.bits - 1)).astype(np.float16).astype(np.float32)
        plain = s * np.clip(np.rint((groups - m) / s), 0, 2**fmt.bits - 1) + m
    else:
        half = 2 ** (fmt.bits - 1)
        s = (np.where(hi > -lo, hi, lo) / -half).astype(np.float16).astype(np.float32)
        plain = s * np.clip(np.rint(groups / s), -half, half - 1)
    bound = ((plain - groups) ** 2).sum(-1)
    assert (error <= bound * 1.001 + 1e-6 * (groups**2).sum(-1)).all()
    assert error.sum() < bound.sum() or fmt.bits > 5


@pytest.mark.parametrize(("name", "bits"), [("bf16", 8), ("f16", 11), ("f32", 24)])
def test_float_formats_round_to_nearest_even(name, bits):
    rng = np.random.default_rng(3)
    w = (rng.standard_normal((17, 64)) * 10.0 ** rng.integers(-2, 3, (17, 64))).astype(np.float32)
    out = pack(FORMATS[name], w)
    assert (np.abs(out - w) <= np.abs(w) * 2.0**-bits + 2.0**-25).all()  # half of float16's smallest step
    if name == "bf16":
        expected = gguf.dequantize(gguf.quantize(w, gguf.GGMLQuantizationType.BF16), gguf.GGMLQuantizationType.BF16)
    else:
        expected = w.astype(np.float16 if name == "f16" else np.float32)
    assert same_bits(out, expected.astype(np.float32))


def test_float16_covers_its_odd_values():
    odd = [0.0, -0.0, 6e-8, 2.9e-8, 3.1e-8, 6.1e-5, 6.09e-5, 65504.0, 65519.9, 65520.0, 1e30, -np.inf, np.nan, 2049.0]
    w = np.array([odd], np.float32)
    with np.errstate(over="ignore"):
        expected = w.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(pack(FORMATS["f16"], w), expected)


@pytest.mark.parametrize("name", ["int4", "int8", "int2:g16:min", "int3:g64:min"])
def test_groups_that_no_scale_fits_do_no_harm(name):
    fmt = parse_format(name)
    w = np.zeros((16, 320), np.float32)
    w[0], w[1, 5], w[2, 7], w[3], w[4, :64] = 1e-12, np.nan, np.inf, 1e30, np.linspace(-1, 1, 64)
    out = pack(fmt, w)
    assert np.isfinite(out).all()
    assert (out[5:] == 0).all() and (out[4, 64:] == 0).all()
    assert np.abs(out[4, :64] - w[4, :64]).max() < 0.5


def test_two_levels_come_from_files_only():
    fmt = Format(4, 32, True, True)
    with pytest.raises(ValueError, match="two-level"):
        _native.pack_float(fmt, np.ones((16, 256), np.float32), _native.alloc_huge(fmt.packed_bytes(16, 256)))

"""Sparse formats: what is packed comes back, and computes as the same weights do in a dense format, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from test_kernels import activations
from test_pack import empty, same_bits

from narrows import _native
from narrows.compress.pattern import Pattern
from narrows.weights import Format, Packed, unpack
from narrows.weights.compressed import pack_codes, pack_kept

FORMATS = [Format(bits, group, sparse=True) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64)]
FORMATS.append(Format(type="bf16", sparse=True))
SHAPES = [(1, 32), (17, 64), (33, 96), (48, 224), (16, 1216)]
PATTERNS = ["2:4", "4:8", "8:16", "16:32", "unstructured"]


def random_matrix(
    fmt: Format, rows: int, cols: int, mask: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(codes, mask, scales); a weight that is not kept has the code of zero."""
    rng = np.random.default_rng(rows * cols + fmt.bits)
    mask = rng.random((rows, cols)) < rng.random((rows, 1)) if mask is None else mask
    if fmt.type:
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        return ((values.view(np.uint32) >> 16) * mask).astype(np.uint16), mask, np.zeros((rows, 0), np.float16)
    codes = np.where(mask, rng.integers(0, 1 << fmt.bits, (rows, cols)), 1 << (fmt.bits - 1)).astype(np.uint8)
    return codes, mask, rng.standard_normal((rows, -(-cols // fmt.group))).astype(np.float16)


def dense(fmt: Format, codes: np.ndarray, scales: np.ndarray) -> Packed:
    rows, cols = codes.shape
    if fmt.type:
        packed = empty(Format(type="bf16"), rows, cols)
        _native.pack_float(packed.format, (codes.astype(np.uint32) << 16).view(np.float32), packed.data, 1)
        return packed
    plain = Format(fmt.bits, fmt.group)
    packed = empty(plain, rows, cols)
    packed.data[:] = pack_codes(codes, scales, plain).reshape(-1)
    return packed


def weights(fmt: Format, codes: np.ndarray, mask: np.ndarray, scales: np.ndarray) -> np.ndarray:
    if fmt.type:
        return (codes.astype(np.uint32) << 16).view(np.float32)
    wide = np.repeat(scales.astype(np.float32), fmt.group, axis=1)[:, : codes.shape[1]]
    return (codes.astype(np.float32) - (1 << (fmt.bits - 1))) * wide * mask


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_what_is_packed_comes_back(fmt: Format) -> None:
    for rows, cols in SHAPES:
        codes, mask, scales = random_matrix(fmt, rows, cols)
        packed = pack_kept(codes, mask, scales, fmt, 2)
        expected = weights(fmt, codes, mask, scales)
        np.testing.assert_array_equal(unpack(packed), expected)
        for n in range(rows):
            np.testing.assert_array_equal(_native.unpack_row(packed, n), expected[n])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_keep_what_they_say(pattern: str) -> None:
    """Every word of 32 columns holds 16 weights; the bytes are half of the codes, a bit a weight, and the scales."""
    saliency = np.random.default_rng(0).random((256, 48)).astype(np.float32)
    mask = np.ascontiguousarray(Pattern.parse(pattern).select(saliency).T)
    if pattern != "unstructured":
        assert (mask.reshape(48, 8, 32).sum(2) == 16).all()
    for bits in (8, 4):
        fmt = Format(bits, 64, sparse=True)
        codes, _, scales = random_matrix(fmt, 48, 256, mask)
        packed = pack_kept(codes, mask, scales, fmt, 1)
        np.testing.assert_array_equal(unpack(packed), weights(fmt, codes, mask, scales))
        table = 128  # a tile's start is 8 bytes, and 64 lie behind the end
        least = table + 48 * 256 * (bits / 2 + 1) / 8 + 48 * 256 // 64 * 2
        odd = 48 * 256 // 512 if pattern == "unstructured" else 0
        uneven = pattern in ("16:32", "unstructured") and bits < 8
        assert least <= packed.data.size <= least * (1.06 if uneven else 1) + odd, pattern


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_products_are_those_of_the_dense_format(fmt: Format, isa: str) -> None:
    for rows, cols in SHAPES:
        codes, mask, scales = random_matrix(fmt, rows, cols)
        packed, plain = pack_kept(codes, mask, scales, fmt, 1), dense(fmt, codes, scales)
        for num in (1, 2, 3, 5, 16, 37):
            x = activations(num, cols)
            y = _native.matmul(packed, x, isa)
            assert same_bits(y, _native.matmul(plain, x, isa)), (rows, cols, num)
            assert same_bits(y[-1:], _native.matmul(packed, x[-1:], isa)), (rows, cols, num)


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("bits", [8, 6, 4])
@pytest.mark.parametrize("broken", [False, True], ids=["all", "all but one"])
def test_products_with_two_kept_of_four_are_those_of_the_dense_format(bits: int, isa: str, broken: bool) -> None:
    """Some levels read such units in a way of their own; one weight more makes a unit that is not one."""
    for rows, cols in [(16, 64), (48, 256), (37, 224)]:
        fmt, rng = Format(bits, 64, sparse=True), np.random.default_rng(bits + rows)
        mask = Pattern.parse("2:4").select(rng.random((cols, rows)).astype(np.float32)).T.copy()
        if broken:
            mask[0, cols // 2 + int(np.flatnonzero(~mask[0, cols // 2 :])[0])] = True
        codes, _, scales = random_matrix(fmt, rows, cols, mask)
        codes[mask] = rng.choice([0, (1 << bits) - 1, 1 << (bits - 1), 1], mask.sum())
        plain, expected = dense(fmt, codes, scales), weights(fmt, codes, mask, scales)
        for packer in dict.fromkeys((isa, "scalar", *_native.isas()[1:2])):  # each level reads what others pack
            packed = pack_kept(codes, mask, scales, fmt, 1, packer)
            np.testing.assert_array_equal(unpack(packed), expected)
            np.testing.assert_array_equal(_native.unpack_row(packed, rows - 1), expected[-1])
            for num in (1, 2, 3, 4, 5, 16, 37):
                x = activations(num, cols)
                y = _native.matmul(packed, x, isa)
                assert same_bits(y, _native.matmul(plain, x, isa)), (rows, cols, num, packer)
                assert same_bits(y, _native.matmul(packed, x, "scalar")), (rows, cols, num, packer)
                assert same_bits(y[-1:], _native.matmul(packed, x[-1:], isa)), (rows, cols, num, packer)


def test_a_matrix_of_which_nothing_or_everything_is_kept() -> None:
    for mask in (np.zeros((17, 64), bool), np.ones((17, 64), bool)):
        for fmt in (Format(4, 32, sparse=True), Format(8, 64, sparse=True)):
            codes, _, scales = random_matrix(fmt, 17, 64, mask)
            packed, x = pack_kept(codes, mask, scales, fmt, 1), activations(3, 64)
            assert same_bits(_native.matmul(packed, x), _native.matmul(dense(fmt, codes, scales), x))


def test_a_damaged_table_is_refused() -> None:
    fmt = Format(8, 32, sparse=True)
    packed = pack_kept(*random_matrix(fmt, 33, 96), fmt, 1)
    start = int(packed.data[8:16].view("<u8")[0])
    for value in (0, packed.data.size, 1 << 63, start + 1):  # the last: in pairs, which the tile is not
        data = _native.alloc_huge(packed.data.size)
        data[:] = packed.data
        data[8:16] = np.array([value], "<u8").view(np.uint8)
        bad = Packed(fmt, 33, 96, data)
        with pytest.raises(ValueError, match="table of tiles"):
            _native.matmul(bad, activations(1, 96))
    with pytest.raises(ValueError, match="shorter"):
        _native.matmul(Packed(fmt, 33, 96, packed.data[:64]), activations(1, 96))
    with pytest.raises(ValueError, match="no such combination"):
        Format(8, 16, sparse=True).packed_bytes(16, 32)
    with pytest.raises(ValueError, match="depends on what it keeps"):
        fmt.packed_bytes(16, 32)

"""The oracle of the packed layout: plain numpy, written from the description in format.h, not from native code."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..types import F32
from .format import U8, Format, Packed

LANES, UNIT, SUPER = 16, 32, 256
PLANES = {8: (8,), 6: (4, 2), 5: (4, 1), 4: (4,), 3: (2, 1), 2: (2,)}  # bits of each plane of a code


def unpack(packed: Packed) -> F32:
    """The matrix as float32 [rows, cols]."""
    f = packed.format
    tiles = -(-packed.rows // LANES)
    if f.sparse:
        starts = packed.data[: 8 * (tiles + 1)].view("<u8").astype(int)
        read = _kept_floats if f.type else _kept_integers
        out = np.stack([read(f, packed.data[a & ~1 : b & ~1], packed.cols, bool(a & 1)) for a, b in pairwise(starts)])
        return np.ascontiguousarray(out.reshape(tiles * LANES, -1)[: packed.rows, : packed.cols])
    data = packed.data.reshape(tiles, -1)
    out = _floats(f, data, packed.cols) if f.type else _integers(f, data, packed.cols)
    return np.ascontiguousarray(out.reshape(tiles * LANES, -1)[: packed.rows, : packed.cols])


def _floats(f: Format, data: U8, cols: int) -> F32:
    """[tiles, 16, cols] from tiles of [cols][16] elements."""
    size = 4 if f.type == "f32" else 2
    raw = np.ascontiguousarray(data[:, : cols * LANES * size])
    if f.type == "bf16":
        values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = raw.view("<f4" if f.type == "f32" else "<f2").astype(np.float32)
    return values.reshape(len(data), cols, LANES).swapaxes(1, 2)


def _integers(f: Format, data: U8, cols: int) -> F32:
    """[tiles, 16, whole blocks] from tiles of blocks."""
    tiles, unit_bytes = len(data), f.bits * 64
    span = SUPER if f.two_level else UNIT if f.group == 16 else (f.group if f.minimum else 2 * f.group)
    groups, units = span // f.group, -(-cols // UNIT)
    blocks = -(-units * UNIT // span)
    size = groups * LANES * (1 if f.two_level else 2)
    sizes = [LANES * 2 * f.two_level, LANES * 2 * (f.two_level and f.minimum)]
    sizes += [size, size * f.minimum]
    header = -(-sum(sizes) // 64) * 64
    block_bytes = header + span // UNIT * unit_bytes
    whole = np.zeros((tiles, blocks * block_bytes), np.uint8)  # the last block of a tile may be short
    whole[:, : data.shape[1]] = data
    parts = np.split(whole.reshape(tiles, blocks, block_bytes), [*np.cumsum(sizes), header], axis=2)
    super_scale, super_min, scale, low, _, codes = parts

    def per_group(level: np.ndarray, above: np.ndarray) -> F32:
        """[tiles, 16, blocks, groups, 1]"""
        raw = np.ascontiguousarray(level).view("i1" if f.two_level else "<f2").astype(np.float32)
        value = raw.reshape(tiles, blocks, groups, LANES)
        if f.two_level:
            value = np.ascontiguousarray(above).view("<f2").astype(np.float32)[:, :, None] * value
        return value.transpose(0, 3, 1, 2)[..., None]

    q = _codes(f.bits, codes.reshape(-1, unit_bytes)).reshape(tiles, blocks * span // UNIT, LANES, UNIT)
    q = q.swapaxes(1, 2).reshape(tiles, LANES, blocks, groups, f.group).astype(np.float32)
    if f.minimum:
        w = per_group(scale, super_scale) * q + per_group(low, super_min)
    else:
        w = per_group(scale, super_scale) * (q - np.float32(1 << (f.bits - 1)))
    return w.reshape(tiles, LANES, -1)


def _codes(bits: int, units: U8) -> U8:
    """Codes [n, 16 rows, 32 columns] of units [n, bits * 64]."""
    q = np.zeros((len(units), 8, 64), np.uint8)  # by quad
    start = shift = 0
    for width in PLANES[bits]:
        plane = units[:, start : start + width * 64].reshape(-1, 1, width, 64)
        slots = np.arange(8 // width, dtype=np.uint8).reshape(-1, 1, 1) * width
        q |= ((plane >> slots) & ((1 << width) - 1)).reshape(
            -1, 8, 64
        ) << shift  # quad v + width * s is slot s of vector v
        start += width * 64
        shift += width
    return q.reshape(-1, 8, LANES, 4).swapaxes(1, 2).reshape(-1, LANES, UNIT)


def _kept_floats(_: Format, tile: U8, cols: int, in_pairs: bool) -> F32:
    """[16, cols] of one tile: masks of 32 columns, then their kept values."""
    assert not in_pairs
    w, at = np.zeros((cols, LANES), np.float32), 0
    for first in range(0, cols, UNIT):
        bits = np.unpackbits(tile[at : at + 2 * UNIT].reshape(UNIT, 2), axis=1, bitorder="little").astype(bool)
        at += 2 * UNIT
        kept = bits[: cols - first]
        end = at + 2 * int(kept.sum())
        w[first : first + UNIT][kept] = (tile[at:end].copy().view("<u2").astype(np.uint32) << 16).view(np.float32)
        at = end
    assert at == len(tile)
    return w.T


def _kept_integers(f: Format, tile: U8, cols: int, in_pairs: bool) -> F32:
    """[16, cols] of one tile: blocks of a header of scales and units of masks, or picks, and planes of kept codes."""
    w, at, scales = np.zeros((LANES, -(-cols // UNIT) * UNIT), np.float32), 0, np.zeros((0, LANES), np.float32)
    offset = 1 << (f.bits - 1)
    for first in range(0, cols, UNIT):
        if first % (2 * f.group) == 0:
            scales = tile[at : at + 4 * LANES].copy().view("<f2").astype(np.float32).reshape(2, LANES)
            at += 64
        if in_pairs:
            quads = np.arange(0, 8, 2, dtype=np.uint8).reshape(4, 1, 1)
            picks = tile[at : at + 64].reshape(2, 1, LANES, 2) >> quads & 3
            kept = np.zeros((8, LANES, 4), bool)
            np.put_along_axis(kept, picks.reshape(8, LANES, 2).astype(int), True, axis=2)
            kept = kept.reshape(8, 64)
        else:
            kept = np.unpackbits(tile[at : at + 64].reshape(8, 8), axis=1, bitorder="little").astype(bool)  # [quad, 64]
        at += 64
        q, shift = np.full((8, 64), offset, np.uint8), 0
        q[kept] = 0
        for width in PLANES[f.bits]:
            longest = 0
            for slot in range(8 // width):
                here = np.zeros((8, 64), bool)
                here[slot * width : (slot + 1) * width] = kept[slot * width : (slot + 1) * width]
                n = int(here.sum())
                q[here] |= (tile[at : at + n] >> (slot * width) & ((1 << width) - 1)) << shift
                longest = max(longest, n)
            at += longest
            shift += width
        at += at % 2
        q[kept] ^= offset
        codes = q.reshape(8, LANES, 4).swapaxes(0, 1).reshape(LANES, UNIT).astype(np.float32) - offset
        w[:, first : first + UNIT] = codes * scales[first % (2 * f.group) // f.group][:, None]
    assert at == len(tile)
    return w

"""A compressed model's matrices, packed; they are kept on disk for the next start as those of other models are."""

from __future__ import annotations

import os
import re

import numpy as np
import xxhash

from .. import _native
from ..checkpoints.compressed import Compressed
from . import cache as disk
from .format import U8, Format, Packed
from .load import ALIGNMENT, PACK_VERSION
from .unpack import LANES, PLANES, UNIT

CHUNK_ROWS = 1024  # packed at a time


def load_compressed(model: Compressed, *, cache: bool = True, num_threads: int = 1) -> dict[str, Packed]:
    """Its matrices by canonical name. Raises CheckpointError when the folder does not hold what it says."""
    fmt = Format(type="bf16") if model.bits == 16 else Format(model.bits, model.group)
    places, end = {}, 0
    for name, (rows, cols) in model.shapes.items():
        size = fmt.packed_bytes(rows, cols)
        places[name] = slice(end, end + size)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    key = xxhash.xxh3_128_digest(f"{model.identity()} {PACK_VERSION} {fmt} {model.shapes}".encode())
    place = xxhash.xxh3_64_hexdigest(os.fsencode(model.path.resolve()))
    stem = re.sub(r"[^\w.+-]+", "-", model.path.name[:80])
    path = disk.packed_dir() / f"{stem}-{place}.packed"
    buffer = disk.read(path, key, end, num_threads) if cache else None
    if buffer is None:
        buffer = _native.alloc_huge(end)
        for name in model.shapes:
            _pack(model, name, fmt, buffer[places[name]], num_threads)
        if cache:
            disk.write(path, key, buffer)
    return {name: Packed(fmt, *model.shapes[name], buffer[place]) for name, place in places.items()}


def _pack(model: Compressed, name: str, fmt: Format, out: U8, num_threads: int) -> None:
    _, codes, scales = model.matrix(name)
    if fmt.type:
        _native.pack_float(fmt, (codes.astype(np.uint32) << 16).view(np.float32), out, num_threads)
        return
    tile_bytes = len(out) // -(-len(codes) // LANES)
    for first in range(0, len(codes), CHUNK_ROWS):
        rows = slice(first, first + CHUNK_ROWS)
        packed = pack_codes(codes[rows], scales[rows], fmt)
        start = first // LANES * tile_bytes
        out[start : start + packed.size] = packed.reshape(-1)


def pack_codes(codes: U8, scales: np.ndarray, fmt: Format) -> U8:
    """Codes [rows, cols] and float16 scales [rows, groups] as tiles [tiles, bytes] of a symmetric format."""
    rows, cols = codes.shape
    tiles, units = -(-rows // LANES), -(-cols // UNIT)
    block_units = 2 * fmt.group // UNIT
    blocks = -(-units // block_units)
    whole = np.zeros((tiles * LANES, blocks * block_units * UNIT), np.uint8)
    whole[:rows, :cols] = codes
    quads = whole.reshape(tiles, LANES, -1, 8, 4).transpose(0, 2, 3, 1, 4).reshape(tiles, -1, 8, 64)
    planes, shift = [], 0
    for width in PLANES[fmt.bits]:
        slots = ((quads >> shift) & ((1 << width) - 1)).reshape(tiles, -1, 8 // width, width, 64)
        weights = (np.arange(8 // width, dtype=np.uint8) * width).reshape(-1, 1, 1)
        planes.append(np.bitwise_or.reduce(slots << weights, axis=2).reshape(tiles, blocks * block_units, -1))
        shift += width
    body = np.concatenate(planes, axis=2).reshape(tiles, blocks, -1)
    header = np.zeros((tiles * LANES, blocks * 2), np.float16)
    header[:rows, : scales.shape[1]] = scales
    heads = np.ascontiguousarray(header.reshape(tiles, LANES, blocks, 2).transpose(0, 2, 3, 1)).view(np.uint8)
    packed = np.concatenate([heads.reshape(tiles, blocks, -1), body], axis=2).reshape(tiles, -1)
    return packed[:, : packed.shape[1] - (blocks * block_units - units) * fmt.bits * 64]

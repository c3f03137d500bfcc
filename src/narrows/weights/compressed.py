"""A compressed model's matrices, packed; they are kept on disk for the next start as those of other models are.

A matrix of kept weights stays sparse where that reads fewer bytes and is not slower; the choice is measured for each
shape, on all matrices of that shape, when they are first packed. Both compute the same, bit for bit.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from statistics import median

import numpy as np
import xxhash

from .. import _native
from ..checkpoints.compressed import Compressed
from . import cache as disk
from .format import OWN, U8, Format, Packed, WeightError
from .load import ALIGNMENT, PACK_VERSION
from .unpack import LANES, PLANES, UNIT

log = logging.getLogger(__name__)

CHUNK_ROWS = 1024  # packed at a time
ENOUGH_BYTES = 256 << 20  # of one shape are timed: more than a cache holds
PASSES = 3


def load_compressed(
    model: Compressed, form: str = "auto", *, cache: bool = True, num_threads: int = 1
) -> dict[str, Packed]:
    """Its matrices by canonical name; `form` is "sparse", "dense" or "auto", which takes the faster for each shape.

    Raises CheckpointError when the folder does not hold what it says, WeightError for another form.
    """
    if form not in OWN:
        raise WeightError(f"{model.path} has weights of its own: weights may be {', '.join(OWN)}, not {form[:40]!r}")
    how = form if form == "dense" else f"{form} {_native.isa()}"  # each level packs in its own way
    how += f" {num_threads}" * (form == "auto")
    key = xxhash.xxh3_128_digest(f"{model.identity()} {PACK_VERSION} {how} {model.shapes}".encode())
    place = xxhash.xxh3_64_hexdigest(os.fsencode(model.path.resolve()))
    stem = re.sub(r"[^\w.+-]+", "-", model.path.name[:80])
    path = disk.packed_dir() / f"{stem}-{place}.packed"
    buffer = disk.read(path, key, None, num_threads) if cache else None
    if buffer is None:
        buffer = _join(_pack(model, form, num_threads))
        if cache:
            disk.write(path, key, buffer)
    return _split(buffer)


def _pack(model: Compressed, form: str, num_threads: int) -> dict[str, Packed]:
    packed: dict[str, Packed] = {}
    for shape in dict.fromkeys(model.shapes.values()):
        names = [name for name, s in model.shapes.items() if s == shape]
        pairs = {name: _forms(model, name, form, num_threads) for name in names}
        why = _why_dense(list(pairs.values()), num_threads) if form == "auto" else ""
        if why:
            log.warning("%s: matrices of %d x %d stay dense: %s", model.path.name, *shape, why)
        for name, (sparse, plain) in pairs.items():
            chosen = plain if why or sparse is None else sparse
            assert chosen is not None
            packed[name] = chosen
    return {name: packed[name] for name in model.shapes}


def _forms(model: Compressed, name: str, form: str, num_threads: int) -> tuple[Packed | None, Packed | None]:
    """A matrix as sparse, if it may be, and as dense, as far as `form` has use for them: at least one."""
    mask, codes, scales = model.matrix(name)
    fmt = Format(type="bf16") if model.bits == 16 else Format(model.bits, model.group)
    if form == "dense" or mask.all() or name == "embed":  # rows of embeddings are looked up
        return None, _pack_plain(codes, scales, fmt, num_threads)
    sparse = pack_kept(codes, mask, scales, replace(fmt, sparse=True), num_threads)
    return sparse, None if form == "sparse" else _pack_plain(codes, scales, fmt, num_threads)


def _pack_plain(codes: np.ndarray, scales: np.ndarray, fmt: Format, num_threads: int) -> Packed:
    rows, cols = codes.shape
    plain = Packed(fmt, rows, cols, _native.alloc_huge(fmt.packed_bytes(rows, cols)))
    if fmt.type:
        _native.pack_float(fmt, (codes.astype(np.uint32) << 16).view(np.float32), plain.data, num_threads)
    else:
        tile_bytes = len(plain.data) // -(-rows // LANES)
        for first in range(0, rows, CHUNK_ROWS):
            some = slice(first, first + CHUNK_ROWS)
            chunk = pack_codes(codes[some], scales[some], fmt)
            start = first // LANES * tile_bytes
            plain.data[start : start + chunk.size] = chunk.reshape(-1)
    return plain


def _why_dense(pairs: list[tuple[Packed | None, Packed | None]], num_threads: int) -> str:
    """Why matrices of one shape had better not be sparse; empty when they had."""
    sparse: list[Packed] = []
    plain: list[Packed] = []
    total = 0
    for some, all_of_it in pairs:
        if some is not None and all_of_it is not None and total < ENOUGH_BYTES:
            sparse.append(some)
            plain.append(all_of_it)
            total += all_of_it.data.size
    if not sparse:
        return ""
    ratio = sum(p.data.size for p in sparse) / total
    if ratio >= 1:
        return f"they would take {ratio:.2f} times the bytes"
    seconds: dict[str, list[float]] = {"sparse": [], "dense": []}
    for _ in range(PASSES):
        seconds["sparse"] += _native.time_products(sparse, 1, num_threads, 1)
        seconds["dense"] += _native.time_products(plain, 1, num_threads, 1)
    times = median(seconds["sparse"]) / median(seconds["dense"])
    return f"they would take {times:.2f} times as long" if times > 1 else ""


def pack_kept(
    codes: np.ndarray, mask: np.ndarray, scales: np.ndarray, fmt: Format, num_threads: int = 1, isa: str = ""
) -> Packed:
    """Codes [rows, cols], the mask of those kept, and float16 scales [rows, groups] in a sparse format.

    Every level reads what any packs; each packs in the way that it reads fastest.
    """
    data = _native.pack_sparse(fmt, codes, mask, np.ascontiguousarray(scales).view(np.uint16), num_threads, isa)
    aligned = _native.alloc_huge(len(data))
    aligned[:] = data
    rows, cols = codes.shape
    return Packed(fmt, rows, cols, aligned)


def _join(matrices: Mapping[str, Packed]) -> U8:
    """Where they are, as JSON after its length, and the matrices."""
    places, end = {}, 0
    for name, m in matrices.items():
        places[name] = (asdict(m.format), m.rows, m.cols, end, m.data.size)
        end += _round(m.data.size)
    text = json.dumps(places).encode()
    start = _round(8 + len(text))
    buffer = _native.alloc_huge(start + end)
    buffer[:8] = np.array([len(text)], "<u8").view(np.uint8)
    buffer[8 : 8 + len(text)] = np.frombuffer(text, np.uint8)
    for name, m in matrices.items():
        at = start + places[name][3]
        buffer[at : at + m.data.size] = m.data
    return buffer


def _split(buffer: U8) -> dict[str, Packed]:
    length = int(buffer[:8].view("<u8")[0])
    places = json.loads(buffer[8 : 8 + length].tobytes())
    start = _round(8 + length)
    return {
        name: Packed(Format(**fmt), rows, cols, buffer[start + at : start + at + size])
        for name, (fmt, rows, cols, at, size) in places.items()
    }


def _round(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


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

"""A checkpoint's tensors to the packed matrices and float32 vectors that the native model reads.

All of them live in one buffer on huge pages, in the order in which they are read. It is filled once, straight from the
mapped file, chunk by chunk, and then kept on disk for the next start.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import xxhash
from rich.console import Console
from rich.progress import Progress

from .. import _native
from ..checkpoints import Checkpoint, TensorInfo
from ..checkpoints.gguf import GGML_TYPES
from ..machine import default_threads
from ..types import F32, ModelSpec, TensorSource
from . import cache as disk
from .format import U8, Format, Packed, WeightError, parse_format

PACK_VERSION = 2  # raise it when the same format is packed into other bytes
ALIGNMENT = 64
CHUNK_BYTES = 16 << 20  # of source, or of floats on the way to another format
FLOAT_TYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the model: where it comes from, and where it goes in the buffer."""

    name: str
    source: TensorSource
    dtype: str
    format: Format | None  # None for a vector
    offset: int  # bytes from the start of the buffer
    nbytes: int

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.source.shape
        return rows, cols


def load_weights(
    ckpt: Checkpoint,
    spec: ModelSpec,
    sources: Mapping[str, TensorSource],
    weights: str = "auto",
    cache: bool = True,
    num_threads: int | None = None,
    progress: bool = True,
) -> dict[str, Packed | F32]:
    """The model's tensors by canonical name: matrices as `Packed`, vectors as float32 [n].

    `weights` is "auto" (GGUF: every matrix as the file stores it; safetensors: bf16) or a format for all matrices, as
    `parse_format` reads it. `cache` keeps packed weights under ~/.cache/narrows/packed (or $NARROWS_CACHE/packed).
    `num_threads` is for packing and reading only. `progress` shows a bar while packing, on a terminal.
    Raises WeightError for an unknown format, and for a tensor that is missing, misshapen or of a type without a use.
    """
    threads = num_threads or default_threads()[0]
    entries, num_bytes = plan(ckpt, sources, weights)
    identity = f"{ckpt.identity()} {PACK_VERSION} {entries}"
    key = xxhash.xxh3_128_digest(identity.encode("utf-8", "surrogateescape"))
    # The name does not hold the key: a model that changed replaces its old file.
    place = xxhash.xxh3_64_hexdigest(os.fsencode(ckpt.path.resolve()) + weights.encode())
    stem = re.sub(r"[^\w.+-]+", "-", f"{ckpt.path.stem[:80]}-{weights[:40]}")
    path = disk.packed_dir() / f"{stem}-{place}.packed"
    buffer = disk.read(path, key, num_bytes, threads) if cache else None
    if buffer is None:
        buffer = _native.alloc_huge(num_bytes)
        hidden = not progress or not sys.stderr.isatty()
        with Progress(console=Console(stderr=True), transient=True, disable=hidden) as bars:
            bar = bars.add_task(f"packing {spec.architecture} weights", total=num_bytes)
            for e in entries:
                for done in _fill(ckpt, e, buffer[e.offset : e.offset + e.nbytes], threads):
                    bars.update(bar, advance=done)
        if cache:
            disk.write(path, key, buffer)
    return {e.name: _view(e, buffer[e.offset : e.offset + e.nbytes]) for e in entries}


def plan(ckpt: Checkpoint, sources: Mapping[str, TensorSource], weights: str) -> tuple[list[Entry], int]:
    """Every tensor's format and place, and the bytes of them all. Raises WeightError."""
    wanted = None if weights == "auto" else parse_format(weights)
    entries, end = [], 0
    for name, source in sources.items():
        info = ckpt.tensors.get(source.name)
        if info is None:
            raise WeightError(f"tensor {source.name!r} is missing from {ckpt.path}")
        if info.shape != tuple(source.shape):
            raise WeightError(
                f"tensor {source.name!r} of {ckpt.path} has shape {info.shape}, but the model needs {source.shape}"
            )
        if source.interleaved_heads and source.shape[0] % (2 * source.interleaved_heads):
            raise WeightError(
                f"tensor {source.name!r}: {source.shape[0]} rows are not {source.interleaved_heads} heads"
            )
        fmt = _format(ckpt, info, wanted)
        nbytes = fmt.packed_bytes(*info.shape) if fmt else 4 * info.shape[0]
        entries.append(Entry(name, source, info.dtype, fmt, end, nbytes))
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return entries, end


def _format(ckpt: Checkpoint, info: TensorInfo, wanted: Format | None) -> Format | None:
    if len(info.shape) not in (1, 2) or not prod(info.shape):
        raise WeightError(f"tensor {info.name!r} has shape {info.shape}: neither a vector nor a matrix")
    allowed = FLOAT_TYPES if len(info.shape) == 1 or ckpt.kind != "gguf" else GGML_TYPES
    if info.dtype not in allowed:
        raise WeightError(f"tensor {info.name!r} of {ckpt.path} is {info.dtype}; it must be {', '.join(allowed)}")
    if len(info.shape) == 1:
        return None
    if wanted:
        return wanted
    return native_format(info.dtype) if ckpt.kind == "gguf" else Format(type="bf16")


def native_format(dtype: str) -> Format:
    """The format that holds a tensor of this type bit for bit."""
    found = _native.gguf_format(GGML_TYPES[dtype])
    if found is None:
        raise WeightError(f"tensors of type {dtype} cannot be loaded")
    bits, group, minimum, two_level, kind = found
    return Format(bits, group, minimum, two_level, kind)


def _fill(ckpt: Checkpoint, entry: Entry, out: U8, num_threads: int) -> Iterator[int]:
    """Writes one tensor to its place, giving the file's memory back on the way; yields the bytes that are done."""
    source, raw = entry.source, ckpt.raw(entry.source.name)
    order = _order(source)
    if entry.format is None:
        vector = to_floats(raw, entry.dtype) + np.float32(source.add)
        out.view(np.float32)[:] = vector if order is None else vector[order]
        yield entry.nbytes
        return
    rows, cols = entry.shape
    row_bytes, tile_bytes = len(raw) // rows, entry.nbytes // -(-rows // 16)
    exact = entry.format == native_format(entry.dtype)
    step = max(CHUNK_BYTES // (row_bytes if exact else 4 * cols) // 16, num_threads) * 16
    for first in range(0, rows, step):
        last = min(first + step, rows)
        target = out[first // 16 * tile_bytes : -(-last // 16) * tile_bytes]
        if order is None:
            chunk = raw[first * row_bytes : last * row_bytes]
        else:
            chunk = raw.reshape(rows, row_bytes)[order[first:last]].reshape(-1)
        if exact:
            _native.pack_gguf(GGML_TYPES[entry.dtype], chunk, last - first, cols, target, num_threads)
        else:
            values = _dequantise(chunk, entry.dtype, last - first, cols, num_threads)
            _native.pack_float(entry.format, values, target, num_threads)
        if order is None:
            ckpt.release(source.name, first * row_bytes, last * row_bytes)
        yield len(target)
    ckpt.release(source.name)


def _order(source: TensorSource) -> np.ndarray | None:
    """For each row, the row of the file that holds it: rotation pairs (2i, 2i + 1) of a head become (i, D/2 + i)."""
    if not source.interleaved_heads:
        return None
    rows = np.arange(source.shape[0])
    return rows.reshape(source.interleaved_heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _dequantise(raw: U8, dtype: str, rows: int, cols: int, num_threads: int) -> F32:
    """float32 [rows, cols] from rows of a stored tensor."""
    if dtype in FLOAT_TYPES:
        return to_floats(raw, dtype).reshape(rows, cols)
    fmt = native_format(dtype)
    packed = Packed(fmt, rows, cols, _native.alloc_huge(fmt.packed_bytes(rows, cols)))
    _native.pack_gguf(GGML_TYPES[dtype], raw, rows, cols, packed.data, num_threads)
    values = np.empty((rows, cols), np.float32)
    for n in range(rows):
        values[n] = _native.unpack_row(packed, n)
    return values


def read_matrix(ckpt: Checkpoint, source: TensorSource, num_threads: int = 1) -> F32:
    """A matrix as float32 [rows, cols]: the weights that a model has in its file's own format."""
    info, (rows, cols) = ckpt.tensors[source.name], source.shape
    values, order = _dequantise(ckpt.raw(source.name), info.dtype, rows, cols, num_threads), _order(source)
    ckpt.release(source.name)
    return values if order is None else values[order]


def to_floats(raw: U8, dtype: str) -> F32:
    """float32 [n] from the bytes of F32, F16 or BF16 values."""
    if dtype == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view("<f4" if dtype == "F32" else "<f2").astype(np.float32)


def _view(entry: Entry, data: U8) -> Packed | F32:
    return Packed(entry.format, *entry.shape, data) if entry.format else data.view(np.float32)

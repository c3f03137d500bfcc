"""Packed weights on disk, so that only the first start pays for packing.

A file is a header (magic, key, sizes, checksum of the table), a table with one xxh3 checksum per chunk, zero bytes up
to a multiple of 4096, and the payload: the buffer of a loaded model as it stands in memory. The key says what the
payload must be, so nothing in the file has to be believed; whatever does not match is packed again.
"""

from __future__ import annotations

import logging
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from .. import _native
from ..machine import cache_dir, keep
from .format import U8

log = logging.getLogger(__name__)

MAGIC = b"NARROWS1"
HEADER = struct.Struct("<8s16sQQ8s")  # magic, key, payload bytes, chunk bytes, checksum of the table
CHUNK = 4 << 20  # still in the processor's cache when it is hashed
ALIGNMENT = 4096


def packed_dir() -> Path:
    """Where packed weights are kept."""
    return cache_dir() / "packed"


def read(path: Path, key: bytes, num_bytes: int | None, num_threads: int) -> U8 | None:
    """The payload in memory on huge pages, or None when the file is missing, stale or damaged.

    It must be of `num_bytes` bytes, unless its size is not known beforehand (None).
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _read(fd, key, num_bytes, num_threads)
    except (OSError, ValueError) as error:
        log.info("packing again: %s %s", path, error)
        return None
    finally:
        os.close(fd)


def _read(fd: int, key: bytes, wanted: int | None, num_threads: int) -> U8:
    header = os.pread(fd, HEADER.size, 0)
    num_bytes = wanted or (HEADER.unpack(header)[2] if len(header) == HEADER.size else 0)
    if num_bytes > os.fstat(fd).st_size:
        raise ValueError("is truncated")
    table_bytes, start = _layout(num_bytes)
    table = os.pread(fd, table_bytes, HEADER.size)
    if header != HEADER.pack(MAGIC, key, num_bytes, CHUNK, xxhash.xxh3_64_digest(table)):
        raise ValueError("is of another version of the model or of Narrows, or damaged")
    if os.fstat(fd).st_size != start + num_bytes:
        raise ValueError("is truncated")
    buffer = _native.alloc_huge(num_bytes)
    whole = buffer.data

    def load(i: int) -> bool:
        chunk = whole[i * CHUNK : (i + 1) * CHUNK]
        done = 0
        while done < len(chunk):
            n = os.preadv(fd, [chunk[done:]], start + i * CHUNK + done)
            if not n:
                return False
            done += n
        return xxhash.xxh3_64_digest(chunk) == table[8 * i : 8 * i + 8]

    with ThreadPoolExecutor(max(num_threads, 1)) as pool:
        if not all(pool.map(load, range(table_bytes // 8))):
            raise ValueError("does not match its checksums")
    return buffer


def write(path: Path, key: bytes, buffer: U8) -> None:
    """Keeps a buffer under a key, if it can."""
    keep(path, lambda file: _write(file.fileno(), key, buffer))


def _write(fd: int, key: bytes, buffer: U8) -> None:
    _, start = _layout(len(buffer))
    whole = buffer.data
    chunks = [whole[i : i + CHUNK] for i in range(0, len(buffer), CHUNK)]
    table = b"".join(map(xxhash.xxh3_64_digest, chunks))
    header = HEADER.pack(MAGIC, key, len(buffer), CHUNK, xxhash.xxh3_64_digest(table)) + table
    for chunk in (memoryview(header.ljust(start, b"\0")), *chunks):
        while chunk:
            chunk = chunk[os.write(fd, chunk) :]


def _layout(num_bytes: int) -> tuple[int, int]:
    """Bytes of the table, and where the payload starts."""
    table = -(-num_bytes // CHUNK) * 8
    return table, -(-(HEADER.size + table) // ALIGNMENT) * ALIGNMENT

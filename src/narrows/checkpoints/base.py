"""What an open checkpoint is: metadata, and tensors that are views into mapped files."""

from __future__ import annotations

import json
import mmap
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

U8 = npt.NDArray[np.uint8]

MAX_JSON_BYTES = 2 << 20  # parsed JSON takes up to thirty times its text


class CheckpointError(ValueError):
    """A file that is not a well-formed checkpoint; the message says where it goes wrong."""


class MappedFile:
    """A regular file, mapped read-only."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError when the file cannot be read, is not a regular file or is empty."""
        self.path = path
        self.num_header_bytes = 0  # what comes before the tensors; set by the reader of the format
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            self.size, self.mtime_ns = status.st_size, status.st_mtime_ns
            if not self.size:
                raise CheckpointError(f"{path} is empty: download it again")
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.bytes: U8 = np.frombuffer(self.map, np.uint8)  # [size]

    def release(self, start: int, stop: int) -> None:
        """Lets go of the memory that holds bytes [start, stop); the next read brings them back from the file."""
        start = start // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(self.map, "madvise") and stop > start:
            self.map.madvise(mmap.MADV_DONTNEED, start, stop - start)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as it is stored."""

    name: str
    dtype: str  # "F32", "BF16", "Q4_K", ...: GGUF's and safetensors' own names
    shape: tuple[int, ...]  # row-major, [out, in] for a matrix
    nbytes: int
    file: MappedFile = field(repr=False, compare=False)
    offset: int = field(repr=False)  # bytes from the start of the file


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint. Nothing of a tensor is in memory until it is read."""

    kind: str  # "gguf" | "safetensors"
    path: Path  # the GGUF file, or the directory
    metadata: dict[str, Any]  # GGUF keys (arrays: list of str, or numpy), or the parsed config.json
    tensors: dict[str, TensorInfo]
    files: tuple[MappedFile, ...] = field(repr=False)

    def raw(self, name: str) -> U8:
        """The bytes [nbytes] of a tensor: a read-only view into the mapped file. Raises KeyError."""
        t = self.tensors[name]
        return t.file.bytes[t.offset : t.offset + t.nbytes]

    def release(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Gives back the memory that bytes [start, stop) of a tensor took when they were read."""
        t = self.tensors[name]
        t.file.release(t.offset + start, t.offset + (t.nbytes if stop is None else stop))

    def identity(self) -> str:
        """A digest that changes when a file of the checkpoint is another, or was written again."""
        digest = xxhash.xxh3_128()
        for f in self.files:
            digest.update(f"{f.path.resolve()}\0{f.size}\0{f.mtime_ns}\0".encode("utf-8", "surrogateescape"))
            digest.update(f.map[: f.num_header_bytes])
        return digest.hexdigest()


def open_regular(path: Path) -> BinaryIO:
    """A binary file object. Raises CheckpointError for anything but a readable regular file: a pipe would never end."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror if isinstance(error, OSError) else error}"
        ) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CheckpointError(f"{path} is not a regular file")
    return file


def parse_object(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object without duplicate keys, from `what`, which errors name. Raises CheckpointError."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except RecursionError as error:
        raise CheckpointError(f"{what} is nested too deeply to be a checkpoint's JSON") from error
    except ValueError as error:
        raise CheckpointError(f"{what} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} must hold a JSON object, not {type(value).__name__}")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a small file. Raises CheckpointError."""
    with open_regular(path) as file:
        text = file.read(MAX_JSON_BYTES + 1)
    if len(text) > MAX_JSON_BYTES:
        raise CheckpointError(f"{path} is larger than the {MAX_JSON_BYTES >> 20} MiB that such a file may have")
    return parse_object(text, str(path))


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"key {twice[:100]!r} appears twice")
    return value

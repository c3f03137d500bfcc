"""GGUF files. The reader is the bounds check: nothing is believed, or allocated, before the file is known to hold it.

A file is a header (magic, version, counts), metadata (key, type, value), tensor descriptions (name, dimensions, type,
offset) and, from the next multiple of `general.alignment` on, the tensors themselves. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from pathlib import Path
from sys import getsizeof
from typing import Any, NoReturn

import numpy as np

from .base import Checkpoint, CheckpointError, MappedFile, TensorInfo

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_KEY_BYTES = 1 << 16
MAX_NAME_BYTES = 1 << 10
MAX_DIMS = 4
MAX_SIDE = 1 << 40
MAX_ALIGNMENT = 1 << 16
# Strings are the one thing that grows when it is read, each by about 60 bytes and then up to four times.
MAX_STRING_MEMORY = 60 << 20

# type number: little-endian numpy type; the types that are not here are bool (7), string (8) and array (9)
SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
BOOL, STRING, ARRAY = 7, 8, 9

# type number: name, values in a block, bytes of a block
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
GGML_TYPES = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}


def open_gguf(path: Path) -> Checkpoint:
    """Opens a GGUF file. Raises CheckpointError naming the metadata key or tensor and the byte where it goes wrong."""
    file = MappedFile(path)
    reader = _Reader(file)
    metadata, num_tensors = reader.header()
    tensors = reader.tensors(num_tensors, reader.alignment(metadata))
    return Checkpoint("gguf", path, metadata, tensors, (file,))


class _Reader:
    """A position in the file, and what is being read there."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.buffer = file.map
        self.size = file.size
        self.pos = 0
        self.what = "header"
        self.memory_left = MAX_STRING_MEMORY

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        at = self.pos if at is None else at
        raise CheckpointError(f"{self.file.path}: {self.what} at byte {at}: {problem}")

    def take(self, n: int, what: str) -> int:
        """Advances over n bytes; returns where they start."""
        start, left = self.pos, self.size - self.pos
        if n > left:
            self.fail(f"{what} takes {n} bytes, but the file ends after {left}: it is truncated or corrupt")
        self.pos = start + n
        return start

    def number(self, dtype: str, what: str) -> Any:
        size = np.dtype(dtype).itemsize
        start = self.take(size, what)
        return np.frombuffer(self.buffer, dtype, 1, start)[0].item()

    def string(self, what: str, limit: int) -> str:
        """`limit`: bytes it may have."""
        start = self.pos
        length = self.number("<u8", f"the length of {what}")
        if length > limit:
            self.fail(f"{what} is {length} bytes long; at most {limit} are allowed", start)
        begin = self.take(length, what)
        try:
            return self.buffer[begin : self.pos].decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not valid UTF-8: {error.reason}", begin + error.start)

    def header(self) -> tuple[dict[str, Any], int]:
        """Metadata and the number of tensors; the position is then at the first description."""
        if bytes(self.buffer[self.take(4, "the magic number") : 4]) != MAGIC:
            self.fail("the file does not begin with 'GGUF': it is not a GGUF file", 0)
        version = self.number("<u4", "the version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            reason = "is big-endian" if swapped else f"has version {version}"
            self.fail(f"the file {reason}; Narrows reads little-endian versions 2 and 3: convert the model again", 4)
        num_tensors, num_keys = self.number("<u8", "the tensor count"), self.number("<u8", "the key count")
        # A tensor takes at least 33 bytes (name, one dimension, type, offset), a key at least 14.
        if num_tensors > MAX_TENSORS or num_tensors * 33 > self.size:
            self.fail(f"{num_tensors} tensors cannot be in a file of {self.size} bytes", 8)
        if num_keys > MAX_KEYS or num_keys * 14 > self.size:
            self.fail(f"{num_keys} metadata keys cannot be in a file of {self.size} bytes", 16)
        metadata: dict[str, Any] = {}
        for i in range(num_keys):
            self.what = f"metadata key {i} of {num_keys}"
            start = self.pos
            key = self.string("its name", MAX_KEY_BYTES)
            if not key:
                self.fail("its name is empty", start)
            if key in metadata:
                self.fail(f"{key[:100]!r} appears twice", start)
            self.what += f" ({key[:100]!r})"
            metadata[key] = self.value()
        return metadata, num_tensors

    def value(self) -> Any:
        kind = self.number("<u4", "its type")
        if kind in SCALARS:
            return self.number(SCALARS[kind], "its value")
        if kind == BOOL:
            value = self.number("u1", "its value")
            if value > 1:
                self.fail(f"a boolean is 0 or 1, not {value}", self.pos - 1)
            return bool(value)
        if kind == STRING:
            text = self.string("its value", self.memory_left // 4)
            self.memory_left -= getsizeof(text)
            return text
        if kind == ARRAY:
            return self.array()
        self.fail(f"unknown type {kind}", self.pos - 4)

    def array(self) -> list[str] | np.ndarray:
        kind, count = self.number("<u4", "the type of its elements"), self.number("<u8", "the length of its array")
        if kind == STRING:
            return self.strings(count)
        if kind not in SCALARS and kind != BOOL:
            nested = "arrays of arrays are" if kind == ARRAY else f"element type {kind} is"
            self.fail(f"{nested} not supported", self.pos - 12)
        dtype = np.dtype(SCALARS.get(kind, "u1"))
        start = self.take(count * dtype.itemsize, f"an array of {count} values")
        values = np.frombuffer(self.buffer, dtype, count, start)
        if kind == BOOL:
            if count and values.max() > 1:
                self.fail("a boolean is 0 or 1", start + int(values.argmax()))
            values = values != 0
        return values.copy()

    def strings(self, count: int) -> list[str]:
        if count * 8 > self.size - self.pos:
            self.fail(f"{count} strings cannot be in the {self.size - self.pos} bytes left of the file", self.pos - 8)
        # The loop runs half a million times for a large vocabulary: plain local names only.
        buffer, pos, size, left, out = self.buffer, self.pos, self.size, self.memory_left, []
        unpack = struct.Struct("<Q").unpack_from
        try:
            for i in range(count):
                if pos + 8 > size:
                    self.fail(f"the file ends before string {i} of {count}: it is truncated or corrupt", pos)
                begin = pos + 8
                end = begin + unpack(buffer, pos)[0]
                if end > size:
                    self.fail(f"string {i} of {count} is {end - begin} bytes long, past the end of the file", pos)
                if end - begin > left // 4:
                    self.fail(f"with string {i} of {count} the metadata hold more text than any vocabulary", pos)
                text = buffer[begin:end].decode()
                left -= getsizeof(text) + 8
                out.append(text)
                pos = end
        except UnicodeDecodeError as error:
            self.fail(f"string {len(out)} of {count} is not valid UTF-8: {error.reason}", pos + 8 + error.start)
        self.memory_left, self.pos = left, pos
        return out

    def alignment(self, metadata: dict[str, Any]) -> int:
        value = metadata.get("general.alignment", 32)
        if not isinstance(value, int) or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
            self.what = "metadata key 'general.alignment'"
            self.fail(f"{value!r:.40} is not a power of two up to {MAX_ALIGNMENT}")
        return value

    def tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        """The tensors by name, in the file's order."""
        found: list[tuple[str, str, tuple[int, ...], int, int, int]] = []  # ..., bytes, offset, where it is described
        for i in range(count):
            self.what = f"tensor {i} of {count}"
            start = self.pos
            name = self.string("its name", MAX_NAME_BYTES)
            if not name:
                self.fail("its name is empty", start)
            self.what += f" ({name[:100]!r})"
            found.append((name, *self.tensor(alignment), start))
        data = -(-self.pos // alignment) * alignment
        self.file.num_header_bytes = min(data, self.size)
        tensors: dict[str, TensorInfo] = {}
        for i, (name, dtype, shape, nbytes, offset, start) in enumerate(found):
            self.what = f"tensor {i} of {count} ({name[:100]!r})"
            if name in tensors:
                self.fail("another tensor has the same name", start)
            if data + offset + nbytes > self.size:
                self.fail(
                    f"its {nbytes} bytes from offset {offset} on reach past the end of the file "
                    f"({max(self.size - data, 0)} bytes are there for tensors): it is truncated or corrupt",
                    start,
                )
            tensors[name] = TensorInfo(name, dtype, shape, nbytes, self.file, data + offset)
        end, last = 0, ""
        for t in sorted(tensors.values(), key=lambda t: t.offset):
            if t.offset < end:
                self.what = f"tensor {t.name[:100]!r}"
                self.fail(f"it overlaps tensor {last[:100]!r}", t.offset)
            end, last = t.offset + t.nbytes, t.name
        return tensors

    def tensor(self, alignment: int) -> tuple[str, tuple[int, ...], int, int]:
        """Type, shape, bytes and offset of the tensor whose name was just read."""
        num_dims = self.number("<u4", "its number of dimensions")
        if not 1 <= num_dims <= MAX_DIMS:
            self.fail(f"it has {num_dims} dimensions; 1 to {MAX_DIMS} are allowed", self.pos - 4)
        dims = [self.number("<u8", "a dimension") for _ in range(num_dims)]
        if not all(1 <= d <= MAX_SIDE for d in dims):
            self.fail(f"its dimensions {dims} are not all between 1 and 2^40", self.pos - 8 * num_dims)
        kind = self.number("<u4", "its type")
        if kind not in TENSOR_TYPES:
            known = ", ".join(GGML_TYPES)
            self.fail(f"GGML type {kind} is not supported (supported are {known}): use another file", self.pos - 4)
        dtype, block, block_bytes = TENSOR_TYPES[kind]
        if dims[0] % block:
            self.fail(f"its rows of {dims[0]} values are not whole blocks of {block}, as {dtype} needs", self.pos - 4)
        nbytes = dims[0] // block * block_bytes
        for d in dims[1:]:
            nbytes *= d
        if nbytes > self.size:
            self.fail(f"with dimensions {dims} it takes {nbytes} bytes; the file has {self.size}", self.pos - 4)
        offset = self.number("<u8", "its offset")
        if offset % alignment:
            self.fail(f"its offset {offset} is not a multiple of the alignment, {alignment}", self.pos - 8)
        return dtype, tuple(reversed(dims)), nbytes, offset

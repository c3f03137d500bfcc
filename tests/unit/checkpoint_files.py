"""Checkpoint files byte by byte, so that each of them can be wrong."""

from __future__ import annotations

import json
import struct
from typing import Any

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10
Q4_0, Q4_K = 2, 12


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n % 2**64)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + u32(kind) + value


def array(kind: int, count: int, items: bytes = b"") -> bytes:
    return u32(kind) + u64(count) + items


def tensor(
    name: str | bytes = "w", dims: tuple[int, ...] = (4, 2), kind: int = 0, offset: int = 0, num_dims: int | None = None
) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return string(name) + u32(count) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


ARCHITECTURE = key("general.architecture", STRING, string("llama"))


def gguf(
    keys: tuple[bytes, ...] = (ARCHITECTURE,),
    tensors: tuple[bytes, ...] = (tensor(),),
    data: bytes = bytes(32),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file; counts are those of the lists unless given."""
    counts = u64(len(tensors) if num_tensors is None else num_tensors) + u64(
        len(keys) if num_keys is None else num_keys
    )
    head = magic + u32(version) + counts + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def entry(dtype: Any = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def safetensors(header: Any, data: bytes = bytes(16), length: int | None = None) -> bytes:
    """A safetensors file; `header` is JSON text or what becomes it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return u64(len(text) if length is None else length) + text + data

"""Compressed models: a folder with `narrows.json` and the matrices that differ from those of a parent model.

A matrix is stored as mask bits ([rows, ceil(cols / 8)], the lowest bit first; none when all weights are kept), the
codes of the kept weights, row by row, `bits` each without gaps (bfloat16 when bits is 16), and float16 scales
[rows, groups].
Everything else comes from the parent, which is recognised by its sha256.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ..machine import cache_dir, keep
from .base import CheckpointError, MappedFile, TensorInfo, read_object
from .safetensors import read_tensors

INFO, WEIGHTS = "narrows.json", "model.safetensors"
KIND, VERSION = "narrows-compressed", 1
BITS = (2, 3, 4, 5, 6, 8, 16)
_CHUNK = 1 << 20


def is_compressed(path: Path) -> bool:
    """Whether a path is a compressed model."""
    return (path / INFO).is_file()


@dataclass(frozen=True)
class Compressed:
    """An open compressed model. Nothing of a matrix is in memory until it is read."""

    path: Path
    info: dict[str, Any]  # narrows.json
    bits: int
    group: int
    shapes: dict[str, tuple[int, int]]  # of the matrices, by canonical name
    tensors: dict[str, TensorInfo]
    file: MappedFile

    def matrix(self, name: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any], npt.NDArray[np.float16]]:
        """(mask [rows, cols], codes [rows, cols], scales [rows, groups]); a weight that is pruned has the code of zero.

        Raises CheckpointError when the tensors do not hold a matrix of its shape.
        """
        rows, cols = self.shapes[name]
        mask = np.ones((rows, cols), bool)
        if f"{name}.mask" in self.tensors:
            bits = self.raw(f"{name}.mask", rows * -(-cols // 8)).reshape(rows, -1)
            mask = np.unpackbits(bits, axis=1, count=cols, bitorder="little").view(bool)
        kept = int(mask.sum())
        zero = 1 << (self.bits - 1) if self.bits < 16 else 0
        codes = np.full((rows, cols), zero, np.uint8 if self.bits < 16 else np.uint16)
        codes[mask] = unpack_bits(self.raw(f"{name}.codes", -(-kept * self.bits // 8)), self.bits, kept)
        groups = -(-cols // self.group) if self.bits < 16 else 0
        scales = np.zeros((rows, 0), np.float16)
        if groups:
            scales = self.raw(f"{name}.scales", rows * groups * 2).view("<f2").reshape(rows, groups)
        return mask, codes, scales

    def identity(self) -> str:
        """A digest that changes when the folder is another, or was written again."""
        f = self.file
        text = f"{self.path.resolve()}\0{f.size}\0{f.mtime_ns}\0{self.bits}\0{self.group}"
        return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogateescape"))

    def vector(self, name: str, count: int) -> npt.NDArray[np.float32]:
        """A float16 tensor [count] as it is stored. Raises CheckpointError."""
        return self.raw(name, 2 * count).view("<f2").astype(np.float32)

    def raw(self, name: str, nbytes: int) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor. Raises CheckpointError when it has another number of them."""
        t = self.tensors.get(name)
        if t is None or t.nbytes != nbytes:
            raise CheckpointError(f"{self.file.path}: tensor {name!r} is missing or has not {nbytes} bytes")
        return self.file.bytes[t.offset : t.offset + nbytes]


def open_compressed(path: Path, name: str = INFO, kind: str = KIND, again: str = "compress the model") -> Compressed:
    """Opens a compressed model, or another folder of this form. Raises CheckpointError, naming the file and the field.

    `name` is that of the file that says what the folder holds, `again` how to make another.
    """
    info = read_object(path / name)

    def error(problem: str) -> CheckpointError:
        return CheckpointError(f"{path / name}: {problem}; {again} again")

    if info.get("kind") != kind or info.get("version") != VERSION:
        raise error(
            f"kind and version are {info.get('kind')!r:.40} {info.get('version')!r:.20}, not {kind!r} {VERSION}"
        )
    bits, group, matrices = info.get("bits"), info.get("group"), info.get("matrices")
    if bits not in BITS or group not in (32, 64):
        raise error(f"bits {bits!r:.20} or group {group!r:.20} is not one that is known")
    if not isinstance(matrices, dict) or not matrices:
        raise error("matrices is missing or empty")
    shapes = {}
    for matrix, entry in matrices.items():
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and 0 < n < 1 << 26 for n in shape):
            raise error(f"matrix {matrix!r:.60} has no shape of two sizes")
        shapes[matrix] = (shape[0], shape[1])
    file = MappedFile(path / WEIGHTS)
    return Compressed(path, info, bits, group, shapes, read_tensors(file), file)


def find_parent(path: Path, models: Path) -> Path:
    """The model that a compressed one was made of: where it was, or by its name in the models directory or beside it.

    Raises CheckpointError when it is not there, or when what is there is another model.
    """
    info = read_object(path / INFO)
    parent = info.get("parent")
    if not isinstance(parent, dict) or not all(isinstance(parent.get(k), str) for k in ("file", "path", "sha256")):
        raise CheckpointError(f"{path / INFO}: parent has no file, path and sha256; compress the model again")
    name = Path(parent["file"]).name
    wrong = []
    for place in dict.fromkeys((Path(parent["path"]), models / name, path.resolve().parent / name)):
        if place.exists() and not is_compressed(place):
            if (found := sha256(place)) == parent["sha256"]:
                return place
            wrong.append(f"{place} is another model (sha256 {found[:12]}...)")
    why = "; ".join(wrong) or f"it is not at {parent['path'][:200]}"
    raise CheckpointError(
        f"{path} belongs to the model {name} of sha256 {parent['sha256'][:12]}..., but {why}: put that model in "
        f"{models}, or set NARROWS_MODELS to the directory that holds it"
    )


def sha256(path: Path) -> str:
    """The digest of a file, or of the files of a directory in order; remembered for as long as they do not change."""
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    states = [f"{f.resolve()}\0{f.stat().st_size}\0{f.stat().st_mtime_ns}" for f in files]
    key = xxhash.xxh3_128_hexdigest("\0".join(states).encode("utf-8", "surrogateescape"))
    memo = cache_dir() / "digests" / key
    try:
        if len(known := memo.read_text()) == 64:
            return known
    except OSError:
        pass
    digest = hashlib.sha256()
    for f in files:
        with f.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    keep(memo, lambda file: file.write(digest.hexdigest().encode()))
    return digest.hexdigest()


def pack_bits(codes: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Codes [n] in `bits` each, the lowest bit first and without gaps, as bytes."""
    if bits >= 8:
        return np.ascontiguousarray(codes).view(np.uint8)
    parts = (codes[i : i + _CHUNK] for i in range(0, max(len(codes), 1), _CHUNK))
    return np.concatenate(
        [np.packbits(np.unpackbits(p[:, None], axis=1, bitorder="little")[:, :bits], bitorder="little") for p in parts]
    )


def unpack_bits(data: npt.NDArray[np.uint8], bits: int, count: int) -> npt.NDArray[Any]:
    """The codes [count] that `pack_bits` made bytes of."""
    if bits >= 8:
        return data.view(np.uint8 if bits == 8 else "<u2")
    codes = np.empty(count, np.uint8)
    for i in range(0, count, _CHUNK):
        n = min(_CHUNK, count - i)
        part = np.unpackbits(data[i * bits // 8 : -(-(i + n) * bits // 8)], count=n * bits, bitorder="little")
        codes[i : i + n] = np.packbits(part.reshape(n, bits), axis=1, bitorder="little")[:, 0]
    return codes

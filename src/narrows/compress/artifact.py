"""Writing a compressed model: a folder of matrices and what they were made of; `narrows.checkpoints` reads it back.

The folder appears whole, by a rename, or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checkpoints.base import MappedFile
from ..checkpoints.compressed import INFO, KIND, VERSION, WEIGHTS, pack_bits
from ..checkpoints.safetensors import read_tensors
from .base import CompressError, Solved
from .grid import Grid

DTYPES = {"u1": "U8", "f2": "F16"}


def tensors_of(name: str, solved: Solved, grid: Grid) -> dict[str, npt.NDArray[Any]]:
    """A compressed matrix as it is stored: mask bits, kept codes in the order of rows, scales."""
    stored = {f"{name}.codes": pack_bits(solved.codes[solved.mask], grid.bits)}
    if not solved.mask.all():
        stored[f"{name}.mask"] = np.packbits(solved.mask, axis=1, bitorder="little")
    if grid.has_scales:
        stored[f"{name}.scales"] = solved.scales
    return stored


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """A safetensors file, whole or not at all. Raises CompressError when there is no room."""
    entries, end = {}, 0
    for name, array in tensors.items():
        dtype = DTYPES[array.dtype.str[1:]]
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    data = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in tensors.values())
    write(path, [len(header).to_bytes(8, "little"), header, *data])


def write(path: Path, parts: Iterable[Any]) -> None:
    """A file of these bytes, whole or not at all. Raises CompressError when it cannot be written."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CompressError(
            f"cannot write {path}: {error.strerror or error}; make room, or choose another place with --out "
            "(the same command goes on with what is done)"
        ) from error


def publish(work: Path, parts: Iterable[Path], info: dict[str, Any], out: Path) -> None:
    """Joins the matrices of `parts` in a folder of the work, renames that to `out` and removes the work."""
    folder = work / "artifact"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    tensors = {}
    for part in parts:
        for t in read_tensors(file := MappedFile(part)).values():
            raw = file.bytes[t.offset : t.offset + t.nbytes]
            kind = next(k for k, name in DTYPES.items() if name == t.dtype)
            tensors[t.name] = raw.view(f"<{kind}").reshape(t.shape)
    write_tensors(folder / WEIGHTS, tensors)
    record = {"kind": KIND, "version": VERSION, **info}
    write(folder / INFO, [json.dumps(record, indent=2, allow_nan=False).encode() + b"\n"])
    os.replace(folder, out)
    shutil.rmtree(work, ignore_errors=True)

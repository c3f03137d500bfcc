"""Readers of data sets; nothing in a file is trusted, and an error names the file, the line and the field."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from .base import DataError

MAX_LINE = 1 << 20  # bytes
MAX_ROWS = 1 << 20
MAX_TEXT = 64 << 20  # bytes of a text, unpacked

Row = dict[str, Any]


def find(data: Path | None, dataset: str, *names: str) -> Path:
    """The first of `names` in the set's folder, or a sole .jsonl[.gz] a user put there. Raises DataError."""
    if data is None:
        raise DataError(f"{dataset} needs its data: give --data DIR, with {dataset}/{names[0]} in it")
    folder = data / dataset
    found = [folder / name for name in names if (folder / name).is_file()]
    found = found or sorted(p for p in folder.glob("*.jsonl*") if p.suffix in (".jsonl", ".gz"))
    if not found:
        raise DataError(f"{folder} holds no {' or '.join(names)}, nor another .jsonl file")
    if len(found) > 1 and found[0].name not in names:
        raise DataError(f"{folder} holds {found[0].name} and {found[1].name}: name the one to use {names[0]}")
    return found[0]


def read_jsonl(path: Path, fields: Mapping[str, type | tuple[type, ...]]) -> list[Row]:
    """Rows of a JSON-lines file, plain or gzip, each with at least `fields` of these types. Raises DataError."""
    rows = []
    for number, line in enumerate(_lines(path), 1):
        where = f"{path}, line {number}"
        if number > MAX_ROWS:
            raise DataError(f"{where}: more than {MAX_ROWS} lines")
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: must be an object, not {type(row).__name__}")
        for key, kind in fields.items():
            if key not in row:
                raise DataError(f"{where}: no field {key!r}; there is {', '.join(map(repr, list(row)[:8]))}")
            if not isinstance(row[key], kind):
                raise DataError(f"{where}: field {key!r} is of type {type(row[key]).__name__}")
        rows.append(row)
    if not rows:
        raise DataError(f"{path} is empty")
    return rows


def unique(path: Path, rows: list[Row], key: str) -> list[Row]:
    """The same rows; raises DataError when two have the same `key`."""
    seen = set()
    for row in rows:
        if row[key] in seen:
            raise DataError(f"{path}: two rows have {key} {row[key]!r}")
        seen.add(row[key])
    return rows


def read_text(path: Path) -> str:
    """A UTF-8 text, plain or gzip, of at most 64 MiB. Raises DataError."""
    try:
        with _open(path) as file:
            return file.read(MAX_TEXT).decode("utf-8", "ignore")
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with _open(path) as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise DataError(f"{path}, line {number}: longer than {MAX_LINE} bytes")
                yield line
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None

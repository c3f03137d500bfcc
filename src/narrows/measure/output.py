"""Results on their way out: a file, a table, a bar while they are being measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..progress import bar

Row = dict[str, Any]


def write(result: dict[str, Any], out: Path | None) -> str:
    """The result as JSON text, also written to `out` when there is one."""
    text = json.dumps(result, indent=2, allow_nan=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
    return text


def with_bar(rows: Iterable[Row], total: int, label: str) -> Iterator[Row]:
    """Rows as they come, with a bar."""
    with bar(label, total, still=True) as advance:
        for row in rows:
            advance()
            yield row


def _range(value: dict[str, float]) -> str:
    return "{median:.4g} ({min:.4g}..{max:.4g})".format(**value)


def _ratio(value: dict[str, float]) -> str:
    return "{median:.2f} ({min:.2f}..{max:.2f})".format(**value)


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.2f}"


# What a table shows of a row, in this order; JSON has the rest.
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "threads": ("threads", str),
    "stack": ("stack", str),
    "draft": ("draft", str),
    "context": ("context", str),
    "format": ("format", str),
    "batch": ("batch", str),
    "temperature": ("temp", "{:g}".format),
    "tokens": ("prompt", str),
    "gigabytes_per_second": ("GB/s", _range),
    "tokens_per_second": ("tokens/s", _range),
    "ratio": ("over the first", _ratio),
    "total_ratio": ("over plain", "{:.2f}x".format),
    "plain_ratio": ("by prompts", _ratio),
    "acceptance_length": ("tokens/forward", "{:.2f}".format),
    "draft_share": ("drafting", "{:.0%}".format),
    "same": ("same answers", "{:.0%}".format),
    "weights_per_second": ("G weights/s", lambda value: _range({k: v / 1e9 for k, v in value.items()})),
    "bytes_per_weight": ("bytes/weight", "{:.3f}".format),
    "dense_ratio": ("over dense", _ratio),
    "weight_bytes_per_token": ("weights MB/token", _megabytes),
    "kv_bytes_per_token": ("KV MB/token", _megabytes),
    "bandwidth_share": ("of bound", "{:.0%}".format),
    "round": ("round", str),
    "engine": ("engine alone", "{:,.1f}".format),
    "http": ("over HTTP", "{:,.1f}".format),
    "share": ("share", "{:.1%}".format),
    "time": ("", str),
    **{name: (f"{name}, s", "{:.3f}".format) for name in ("mean", "p50", "p90", "p95", "p99", "max")},
    "noisy": ("noise", lambda noisy: "noisy" if noisy else ""),
}


def print_table(title: str, rows: list[Row]) -> None:
    """The rows on stdout."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown = {name: column for name, column in COLUMNS.items() if name in rows[0]}
    if not any(row.get("noisy") for row in rows):
        shown.pop("noisy", None)
    for heading, _ in shown.values():
        table.add_column(
            heading, justify="right", no_wrap=heading in ("stack", "draft", "tokens/s", "by prompts", "GB/s", "noise")
        )
    for row in rows:
        table.add_row(*(text(row[name]) if name in row else "" for name, (_, text) in shown.items()))
    Console(width=None if sys.stdout.isatty() else 120).print(table)  # a file or a pipe has no edge

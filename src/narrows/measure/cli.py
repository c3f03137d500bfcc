"""``narrows bench``: measurements as a table, as JSON, or as a result file with its provenance."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from narrows.measure.decode import Bench

app = typer.Typer(help="Measure this machine, and how close a model comes to it.", no_args_is_help=True)

Model = Annotated[str, typer.Argument(help="A short name, a .gguf file, a model directory, or a Hugging Face id.")]
Weights = Annotated[str, typer.Option(help="Weight format; auto keeps the file's own.")]
ThreadList = Annotated[
    str | None, typer.Option("--threads", "-t", help="Thread counts, e.g. 1,2 (default: all cores).")
]
Repeats = Annotated[int, typer.Option(min=1, help="Timed runs; the median and the range are shown.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Out = Annotated[Path | None, typer.Option(help="Also write the result, as JSON, to this file.")]


@app.command(epilog="Example: narrows bench bandwidth --threads 1,2")
def bandwidth(
    threads: ThreadList = None,
    megabytes: Annotated[
        int, typer.Option(min=64, max=1 << 20, help="Size of the buffer that is read, in MiB.")
    ] = 2048,
    repeats: Repeats = 5,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Read bandwidth of the memory by number of threads: what bounds decoding."""
    from narrows.measure.bandwidth import measure
    from narrows.measure.provenance import num_cpus

    counts = numbers(threads, "--threads", at_least=1) if threads else range(1, num_cpus() + 1)

    def rows() -> Iterator[dict[str, Any]]:
        for count in counts:
            samples = measure(count, num_bytes=megabytes << 20, repeats=repeats)
            yield {"threads": count, "gigabytes_per_second": samples.json()}

    _report("bandwidth", rows(), as_json, out)


@app.command(epilog="Example: narrows bench decode smollm2 --context 0,4096 --batch 1,8,16")
def decode(
    model: Model,
    context: Annotated[str, typer.Option(help="Tokens already read, e.g. 0,4096.")] = "0",
    batch: Annotated[str, typer.Option(help="Requests that decode together, e.g. 1,8,16.")] = "1",
    steps: Annotated[int, typer.Option(min=1, max=4096, help="Tokens each request decodes in a run.")] = 16,
    threads: ThreadList = None,
    weights: Weights = "auto",
    repeats: Repeats = 5,
    as_json: Json = False,
    out: Out = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw tokens/s by context, with the bound, into this .png or .svg file.")
    ] = None,
) -> None:
    """Tokens per second by context length and batch size."""
    contexts, batches = numbers(context, "--context", at_least=0), numbers(batch, "--batch", at_least=1)
    from narrows import _native
    from narrows.measure import decode as bench

    def measured(opened: Bench, bandwidth: float) -> Iterator[dict[str, Any]]:
        return bench.decode(
            opened,
            contexts=contexts,
            batches=batches,
            argmax=_native.argmax,
            bandwidth=bandwidth,
            steps=steps,
            repeats=repeats,
        )

    room = max(batches), max(contexts) + steps
    rows = _bench_model("decode", model, measured, *room, threads, weights, as_json, out)
    if plot is not None:
        from narrows.measure.plot import decode as draw

        draw(rows, model, plot)


@app.command(epilog="Example: narrows bench prefill smollm2 --tokens 512")
def prefill(
    model: Model,
    tokens: Annotated[str, typer.Option(help="Prompt lengths, e.g. 128,512.")] = "512",
    threads: ThreadList = None,
    weights: Weights = "auto",
    repeats: Repeats = 3,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Tokens per second at which a prompt is read."""
    counts = numbers(tokens, "--tokens", at_least=1)
    from narrows.measure import decode as bench

    def measured(opened: Bench, bandwidth: float) -> Iterator[dict[str, Any]]:
        return bench.prefill(opened, tokens=counts, bandwidth=bandwidth, repeats=repeats)

    _bench_model("prefill", model, measured, 1, max(counts), threads, weights, as_json, out)


def _bench_model(
    kind: str,
    model: str,
    measured: Callable[[Bench, float], Iterator[dict[str, Any]]],
    max_batch: int,
    max_context: int,
    threads: str | None,
    weights: str,
    as_json: bool,
    out: Path | None,
) -> list[dict[str, Any]]:
    """Measures a model with each number of threads, with room for max_batch * max_context tokens."""
    from narrows.loader import PAGE_SIZE, load
    from narrows.measure.bandwidth import bandwidth
    from narrows.measure.decode import Bench
    from narrows.models.hub import resolve

    counts = numbers(threads, "--threads", at_least=1) if threads else [None]
    pages = max_batch * -(-max_context // PAGE_SIZE)
    path = resolve(model)

    def rows() -> Iterator[dict[str, Any]]:
        for count in counts:
            loaded = load(path, weights=weights, num_threads=count)
            if loaded.model.num_pages < pages:  # more than a server would take by itself
                room = pages * PAGE_SIZE * loaded.model.kv_bytes_per_token
                loaded = load(path, weights=weights, num_threads=count, kv_cache_bytes=room)
            bench = Bench(
                loaded.model,
                vocab_size=loaded.spec.vocab_size,
                page_size=PAGE_SIZE,
                max_batch=max_batch,
                max_context=max_context,
            )
            gigabytes = bandwidth(loaded.model.num_threads)
            for row in measured(bench, gigabytes):
                yield {"threads": loaded.model.num_threads, **row, "bandwidth_gigabytes": gigabytes}

    return _report(kind, rows(), as_json, out, model=path, settings={"weights": weights})


def numbers(text: str, option: str, *, at_least: int) -> list[int]:
    """Parses "1,8,16". Raises ValueError naming the option."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} is {text!r}; it must be whole numbers separated by commas, e.g. 1,8") from None
    if min(values) < at_least:
        raise ValueError(f"{option} holds {min(values)}; the smallest allowed is {at_least}")
    return values


def _report(
    kind: str,
    rows: Iterable[dict[str, Any]],
    as_json: bool,
    out: Path | None,
    *,
    model: Path | None = None,
    settings: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    from narrows.measure.provenance import provenance

    rows = list(rows)
    result = {"kind": kind, "rows": rows, **(settings or {}), "provenance": provenance(model=model)}
    text = json.dumps(result, indent=2, allow_nan=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
    if as_json:
        typer.echo(text)
    else:
        _print_table(kind, rows)
    return rows


def _range(value: dict[str, float]) -> str:
    return "{median:.4g} ({min:.4g}..{max:.4g})".format(**value)


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.2f}"


# What a table shows of a row, in this order; JSON has the rest.
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "threads": ("threads", str),
    "context": ("context", str),
    "batch": ("batch", str),
    "tokens": ("prompt", str),
    "gigabytes_per_second": ("GB/s", _range),
    "tokens_per_second": ("tokens/s", _range),
    "weight_bytes_per_token": ("weights MB/token", _megabytes),
    "kv_bytes_per_token": ("KV MB/token", _megabytes),
    "bandwidth_share": ("of bound", "{:.0%}".format),
}


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    shown = {name: column for name, column in COLUMNS.items() if name in rows[0]}
    for heading, _ in shown.values():
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(text(row[name]) for name, (_, text) in shown.items()))
    Console().print(table)

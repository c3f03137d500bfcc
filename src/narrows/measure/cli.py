"""``narrows bench``: measurements as a table, as JSON, or as a result file with its provenance."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrows.compress.cli import PROMPTS
from narrows.measure.load import cli as load
from narrows.measure.peers.cli import peers

if TYPE_CHECKING:
    from narrows.measure.decode import Bench
    from narrows.stack import Stack

app = typer.Typer(help="Measure this machine, and how close a model comes to it.", no_args_is_help=True)

Model = Annotated[str, typer.Argument(help="A short name, a .gguf file, a model directory, or a Hugging Face id.")]
Weights = Annotated[str | None, typer.Option(help="Weight format, instead of the stack's; auto keeps the file's own.")]
StackLine = Annotated[str, typer.Option(help='Parts to use, e.g. "weights=int4".')]
StackLines = Annotated[
    list[str] | None,
    typer.Option(
        "--stack", help='Parts to use, e.g. "weights=int4"; several take turns, for the ratio of their speeds.'
    ),
]
Qualities = Annotated[
    list[Path] | None,
    typer.Option("--quality", help="Result of `narrows eval`, which a lossy stack needs; may be repeated."),
]
ThreadList = Annotated[
    str | None, typer.Option("--threads", "-t", help="Thread counts, e.g. 1,2 (default: all cores).")
]
Repeats = Annotated[int, typer.Option(min=1, help="Timed runs; the median and the range are shown.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Out = Annotated[Path | None, typer.Option(help="Also write the result, as JSON, to this file.")]
Plot = Annotated[Path | None, typer.Option(help="Draw the speeds into this .png or .svg file.")]


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
    from narrows.measure.noise import NOISY_CORES, cores_of_others
    from narrows.measure.output import with_bar
    from narrows.measure.provenance import num_cpus

    counts = numbers(threads, "--threads", at_least=1) if threads else range(1, num_cpus() + 1)

    def rows() -> Iterator[dict[str, Any]]:
        for count in counts:
            read = partial(measure, count, num_bytes=megabytes << 20, repeats=repeats)
            samples, others = cores_of_others(read)
            facts = {"others": others, "noisy": others > NOISY_CORES}
            yield {"threads": count, "gigabytes_per_second": samples.json(), **facts}

    _report("bandwidth", list(with_bar(rows(), len(counts), "bandwidth")), as_json, out)


@app.command(
    epilog="Examples:\n\nnarrows bench decode smollm2 --context 0,4096,32768 --batch 1,8,32 --plot decode.png\n\n"
    "narrows bench decode smollm2 --stack weights=int4 --quality eval-int4.json\n\n"
    "narrows bench decode smollm2-2of4-int8-generated --stack weights=dense --stack weights=sparse --quality eval.json"
)
def decode(
    model: Model,
    context: Annotated[str, typer.Option(help="Tokens already read, e.g. 0,4096.")] = "0",
    batch: Annotated[str, typer.Option(help="Requests that decode together, e.g. 1,8,16.")] = "1",
    steps: Annotated[int, typer.Option(min=1, max=4096, help="Tokens each request decodes in a run.")] = 16,
    threads: ThreadList = None,
    stack: StackLines = None,
    weights: Weights = None,
    quality: Qualities = None,
    repeats: Repeats = 5,
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Tokens per second by context length and batch size."""
    contexts, batches = numbers(context, "--context", at_least=0), numbers(batch, "--batch", at_least=1)
    from narrows import _native
    from narrows.measure import decode as bench

    def measured(opened: Mapping[str, Bench]) -> Iterator[dict[str, Any]]:
        return bench.decode(
            opened, contexts=contexts, batches=batches, argmax=_native.argmax, steps=steps, repeats=repeats
        )

    room = Room(max(batches), max(contexts) + steps, len(set(contexts)) * len(batches))
    _bench_model("decode", model, measured, room, threads, stack, weights, quality, as_json, out, plot)


@app.command(epilog="Example: narrows bench prefill smollm2 --tokens 128,512,2048,8192 --plot prefill.png")
def prefill(
    model: Model,
    tokens: Annotated[str, typer.Option(help="Prompt lengths, e.g. 128,512.")] = "512",
    threads: ThreadList = None,
    stack: StackLines = None,
    weights: Weights = None,
    quality: Qualities = None,
    repeats: Repeats = 3,
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Tokens per second at which a prompt is read."""
    counts = numbers(tokens, "--tokens", at_least=1)
    from narrows.measure import decode as bench

    def measured(opened: Mapping[str, Bench]) -> Iterator[dict[str, Any]]:
        return bench.prefill(opened, tokens=counts, repeats=repeats)

    room = Room(1, max(counts), len(counts))
    _bench_model("prefill", model, measured, room, threads, stack, weights, quality, as_json, out, plot)


@app.command(epilog="Example: narrows bench kernel --formats int8:g64,int4:g64 --pattern 2:4 --batch 1,8")
def kernel(
    formats: Annotated[str, typer.Option(help="Weight formats, e.g. int8:g64,int4.")] = "int8:g64,int4:g64",
    pattern: Annotated[
        str, typer.Option(help="Of sparse matrices: unstructured, 2:4, 4:8, 8:16 or 16:32.")
    ] = "unstructured",
    ratio: Annotated[float, typer.Option(help="Share that unstructured ones lack.")] = 0.5,
    batch: Annotated[str, typer.Option(help="Rows of activations, e.g. 1,8.")] = "1,8",
    megabytes: Annotated[int, typer.Option(min=1, max=1 << 16, help="Size of the dense matrices, in MiB.")] = 512,
    threads: ThreadList = None,
    repeats: Repeats = 5,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Speed of products with sparse weights beside those with dense ones."""
    from narrows.compress.pattern import Pattern
    from narrows.machine import default_threads
    from narrows.measure import kernel as bench
    from narrows.measure.bandwidth import measure
    from narrows.measure.conditions import BESIDE_BYTES, BESIDE_READS, under_conditions
    from narrows.measure.output import with_bar

    counts = numbers(threads, "--threads", at_least=1) if threads else [default_threads()[0]]
    wanted, batches = bench.formats(formats), numbers(batch, "--batch", at_least=1)
    pruned = Pattern.parse(pattern, ratio)

    def rows() -> Iterator[dict[str, Any]]:
        for count in counts:
            measured = bench.kernels(
                wanted, pattern=pruned, batches=batches, threads=count, num_bytes=megabytes << 20, repeats=repeats
            )
            read = partial(measure, count, num_bytes=BESIDE_BYTES, repeats=BESIDE_READS)
            for row in under_conditions(measured, read):
                yield {"threads": count, **row}

    done = list(with_bar(rows(), 2 * len(counts) * len(wanted) * len(batches), "kernel"))
    _report("kernel", done, as_json, out, facts={"pattern": pattern, "ratio": pruned.ratio})


@app.command(epilog="Example: narrows bench draft smollm2 --draft head --draft 'ngram|head' --prompts questions.jsonl")
def draft(
    model: Model,
    drafts: Annotated[list[str], typer.Option("--draft", help="What drafts, as in `run`; may be repeated.")],
    prompts: Annotated[Path | None, typer.Option(help=f"{PROMPTS}; default: openers.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Prompts, evenly spread over the file.")] = 16,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 128,
    temperatures: Annotated[
        list[float] | None,
        typer.Option("--temperature", "--temp", help="0, the default, takes the likeliest token; may be repeated."),
    ] = None,
    batch: Annotated[str, typer.Option(help="Prompts answered together, e.g. 1,8.")] = "1",
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Threads (default: all cores).")] = None,
    stack: StackLine = "",
    llamacpp: Annotated[
        Path | None, typer.Option(help="Folder of llama-server, which then answers too, with the drafts that it has.")
    ] = None,
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Speed of decoding with drafts over that without, and how much of the drafts is kept."""
    batches = numbers(batch, "--batch", at_least=1)
    from narrows import LLM, SamplingParams
    from narrows.machine import default_threads
    from narrows.measure import drafts as bench
    from narrows.measure.noise import NOISY_CORES, cores_of_others
    from narrows.measure.peers.speculation import llama_servers
    from narrows.models.hub import resolve

    path = resolve(model)
    peers = llama_servers(llamacpp, path, drafts, threads or default_threads()[0]) if llamacpp else {}
    params = [SamplingParams(temperature=t, max_tokens=tokens, seed=0, ignore_eos=True) for t in temperatures or [0.0]]

    def load(chosen: Stack) -> LLM:
        return LLM(path, chosen, num_threads=threads)

    measured = partial(bench.measure, load, stack, drafts, prompts, samples, params, batches, peers)
    rows, others = cores_of_others(lambda: list(measured()))
    facts = {"prompts": prompts.name if prompts else "openers", "tokens": tokens}
    rows = [{**row, "others": others, "noisy": others > NOISY_CORES} for row in rows]
    result = _report("draft", rows, as_json, out, model=path, facts={**facts, "stack": stack})
    if plot is not None:
        from narrows.measure.plot import drafts as picture

        picture(result, plot)


app.command(
    epilog="Examples:\n\nnarrows bench peers smollm2 --rounds 5 --out peers.json --plot peers.png\n\n"
    "narrows bench peers smollm2 --llamacpp build/bin --python openvino=ov/bin/python --cases decode-0,batch-8"
)(peers)
app.command(epilog=load.SERVE_EPILOG)(load.serve)
app.command(epilog="Example: narrows bench overhead smollm2 --streams 8")(load.overhead)


@app.command(epilog="Example: narrows bench compare before.json after.json")
def compare(
    a: Annotated[Path, typer.Argument(help="A result that `bench --out` wrote.")],
    b: Annotated[Path, typer.Argument(help="Another of the same kind, with the same rows.")],
    as_json: Json = False,
) -> None:
    """How many times as fast B is as A, row by row, with the range; and what differs between the two."""
    from narrows.measure import compare as comparing

    compared = comparing.compare(comparing.read(a), comparing.read(b), a.name, b.name)
    if as_json:
        typer.echo(json.dumps(compared, indent=2, allow_nan=False))
    else:
        comparing.show(compared)
    for warning in compared["warnings"]:
        typer.echo(f"warning: {warning}", err=True)


@dataclass(frozen=True, slots=True)
class Room:
    """What a benchmark needs of the KV cache, and how many rows it has."""

    max_batch: int
    max_context: int  # tokens of each request
    num_rows: int  # for each number of threads


def _bench_model(
    kind: str,
    model: str,
    measured: Callable[[Mapping[str, Bench]], Iterator[dict[str, Any]]],
    room: Room,
    threads: str | None,
    lines: list[str] | None,
    weights: str | None,
    qualities: list[Path] | None,
    as_json: bool,
    out: Path | None,
    plot: Path | None,
) -> None:
    """Measures a model with each number of threads, in several stacks in turn."""
    from narrows.machine import default_threads
    from narrows.measure import honesty
    from narrows.measure.bandwidth import measure
    from narrows.measure.conditions import BESIDE_BYTES, BESIDE_READS, under_conditions
    from narrows.measure.output import with_bar
    from narrows.models.hub import resolve
    from narrows.stack import Stack

    counts = numbers(threads, "--threads", at_least=1) if threads else [default_threads()[0]]
    path, names = resolve(model), lines or [""]
    stacks = [Stack.parse(line) for line in names]
    stacks = [replace(stack, weights=weights or stack.weights) for stack in stacks]
    for stack in stacks:
        stack.check()
        if stack.draft is not None:
            raise ValueError(
                "decode and prefill drive the model directly and draft nothing: leave draft out of --stack"
            )
    if len(set(stacks)) < len(stacks):
        raise ValueError("--stack gives the same stack twice")
    figures = [honesty.quality_of(stack, path, qualities) for stack in stacks]

    def rows() -> Iterator[dict[str, Any]]:
        for count in counts:
            benches = {name: _open(path, stack, count, room) for name, stack in zip(names, stacks, strict=True)}
            read = partial(measure, count, num_bytes=BESIDE_BYTES, repeats=BESIDE_READS)
            for row in under_conditions(measured(benches), read):
                yield {"threads": count, **row}

    facts: dict[str, Any] = {"weights": stacks[0].weights, "stack": " | ".join(map(str, stacks))}
    if any(figures):
        facts["quality"] = figures[0] if len(figures) == 1 else dict(zip(names, figures, strict=True))
    done = list(with_bar(rows(), len(counts) * len(stacks) * room.num_rows, kind))
    result = _report(kind, done, as_json, out, model=path, facts=facts)
    if not as_json:
        for name, found in zip(names, figures, strict=True):
            if found:
                typer.echo((f"{name}: " if len(names) > 1 else "") + honesty.line(found))
    if plot is not None:
        from narrows.measure.plot import speeds

        speeds(result, plot)


def _open(path: Path, stack: Stack, threads: int, room: Room) -> Bench:
    from narrows.loader import load
    from narrows.measure.decode import Bench
    from narrows.native import PAGE_SIZE

    pages = room.max_batch * -(-room.max_context // PAGE_SIZE)
    loaded = load(path, stack, num_threads=threads)
    if loaded.model.num_pages < pages:  # more than a server would take by itself
        size = pages * PAGE_SIZE * loaded.model.kv_bytes_per_token
        loaded = load(path, stack, num_threads=threads, kv_cache_bytes=size)
    return Bench(
        loaded.engine.model,
        vocab_size=loaded.spec.vocab_size,
        page_size=PAGE_SIZE,
        max_batch=room.max_batch,
        max_context=room.max_context,
    )


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
    rows: list[dict[str, Any]],
    as_json: bool,
    out: Path | None,
    *,
    model: Path | None = None,
    facts: dict[str, Any] | None = None,
) -> dict[str, Any]:
    from narrows.measure.output import print_table, write
    from narrows.measure.provenance import provenance

    result = {"kind": kind, "rows": rows, **(facts or {}), "provenance": provenance(model=model)}
    text = write(result, out)
    if as_json:
        typer.echo(text)
    else:
        print_table(kind, rows)
    if noisy := sum(row.get("noisy", False) for row in rows):
        typer.echo(
            f"warning: others used the machine during {noisy} of {len(rows)} rows; measure those again", err=True
        )
    return result

"""``narrows compress``: prune and quantise a model on the text it writes itself."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrows.progress import Advance, bar, resumable

if TYPE_CHECKING:
    from narrows import LLM
    from narrows.compress.sequences import Calibration

PROMPTS = 'Prompts, one a line, or .jsonl with "prompt", "turns", "question" or "text"'  # what --prompts takes
MOST_MEMORY = 8 << 30  # unless asked for

EPILOG = (
    "Examples:\n\n"
    "narrows compress smollm2 --pattern 2:4 --bits 8    (then: narrows run smollm2-2of4-int8-generated)\n\n"
    "narrows compress qwen-1.5b --pattern unstructured --ratio 0.5 --bits 4 --prompts problems.jsonl --tokens 32k\n\n"
    "narrows compress smollm2 --calibrate text --text book.txt --solver wanda\n\n"
    "narrows compress smollm2 --diagnose --text book.txt --tokens 8k"
)


def compress(
    model: Annotated[
        str, typer.Argument(help="A short name (smollm2), a .gguf file, a model directory, or a Hugging Face id.")
    ],
    calibrate: Annotated[
        str, typer.Option(help="What matrices are fitted to: generated, text or prompts+generated.")
    ] = "generated",
    tokens: Annotated[str, typer.Option(help="Inputs of each matrix that are looked at, e.g. 32k.")] = "32k",
    pattern: Annotated[
        str, typer.Option(help="Which weights stay: 2:4, 4:8, 8:16, 16:32, unstructured, or dense.")
    ] = "unstructured",
    ratio: Annotated[float, typer.Option(help="Share of the weights to prune when unstructured.")] = 0.5,
    allocate: Annotated[
        str, typer.Option(help="uniform, or loss: prune matrices more where it hurts less (unstructured).")
    ] = "uniform",
    bits: Annotated[int, typer.Option(help="Bits of a kept weight: 8, 6, 5, 4, 3, 2, or 16 for bf16.")] = 8,
    group: Annotated[int, typer.Option(help="Columns that share a scale: 32 or 64.")] = 32,
    solver: Annotated[
        str, typer.Option(help="sparsegpt or wanda, with settings: sparsegpt:block=128,damp=0.01.")
    ] = "sparsegpt",
    include: Annotated[list[str] | None, typer.Option(help="Also compress this; head is the only choice.")] = None,
    prompts: Annotated[Path | None, typer.Option(help=f"{PROMPTS}; default: own openers.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue prompts as they are, without the chat template.")
    ] = False,
    text: Annotated[Path | None, typer.Option(help="The text of --calibrate text.")] = None,
    length: Annotated[int, typer.Option(help="Longest continuation, or window of text, in tokens.")] = 512,
    temperature: Annotated[float, typer.Option("--temperature", "--temp", help="Of the sampling.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same artifact.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; default: in the models directory, named by what was done.")
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="Keep what the matrices meet in this folder, and take it from there: another recipe of the same "
            "calibration reads nothing again. Needs about 4 bytes for each pair of a matrix's inputs."
        ),
    ] = None,
    diagnose: Annotated[
        bool,
        typer.Option("--diagnose", help="Write no model: show how near calibrations are to decoding, layer by layer."),
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(help="Bytes to use beside the model, e.g. 6G; default: half of the free, up to 8G."),
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Prune a model and quantise what is left, fitted to the text it writes itself.

    The result is a folder that run, eval and bench take like any model; what it does not hold comes from the model
    it was made of. A run that was stopped goes on where it was when the same command is given again.
    """
    from narrows.compress import SOLVERS
    from narrows.compress.grid import Grid
    from narrows.compress.pattern import Pattern
    from narrows.compress.run import Compression, Recipe
    from narrows.compress.sequences import Calibration
    from narrows.machine import available_memory
    from narrows.methods import build
    from narrows.models import hub

    if allocate not in ("uniform", "loss"):
        raise ValueError(f"--allocate {allocate[:40]!r} is not known; use uniform or loss")
    if unknown := set(include or ()) - {"head"}:
        raise ValueError(f"--include {min(unknown)[:40]!r} is not known; only head can be included")
    calibration = Calibration(
        calibrate, amount("--tokens", tokens), length, temperature, seed, prompts, text, raw
    )  # every flag is checked before a model is loaded
    recipe = Recipe(
        calibration,
        build("solver", solver, SOLVERS),
        Pattern.parse(pattern, ratio),
        Grid(bits, group),
        allocate == "loss",
        bool(include),
    )
    room = min(available_memory() // 2, MOST_MEMORY) if memory is None else amount("--memory", memory)
    path = hub.resolve(model)
    if hub.parent(path) != path:
        raise ValueError(f"{model} is compressed already: compress the model it was made of")

    from narrows import LLM

    stem = re.sub(r"\.gguf$", "", Path(model).name)
    if diagnose:
        _diagnose(LLM(path, num_threads=threads), stem, calibration, out, room, as_json)
        return
    kind = f"{recipe.pattern.keep}of{recipe.pattern.span}" if recipe.pattern.span else str(recipe.pattern)
    kind += f"{ratio:.0%}".rstrip("%") if kind == "unstructured" else ""
    named = f"{stem}-{kind}-{f'int{bits}' if bits < 16 else 'bf16'}-{calibrate.replace('+', '-')}"
    where = out or hub.models_dir() / named
    if where.exists():
        raise ValueError(f"{where} exists already: remove it, or choose another --out")
    work = Compression(LLM(path, num_threads=threads), model, where, recipe, room, stage, inputs)
    with resumable(work.work):
        info = work.run()
    size = sum(f.stat().st_size for f in where.iterdir())
    if as_json:
        typer.echo(json.dumps({"path": str(where), "bytes": size, **info}, indent=2, allow_nan=False))
        return
    _print_losses(info["matrices"])
    typer.echo(f"{where}: {size / 1e6:,.1f} MB; mean loss {info['loss']:.4f} of the outputs' energy")


def amount(flag: str, text: str) -> int:
    """``32k`` and ``6G`` as numbers, in powers of 1024. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,12})([kmg]?)b?", text.strip().lower())
    if match is None or not int(match[1]):
        raise ValueError(f"{flag} is {text[:40]!r}; it must be a number such as 4096, 32k or 6G")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


@contextmanager
def stage(label: str, total: int) -> Iterator[Advance]:
    """One of several things that are done in turn: a log is told when it begins."""
    if not sys.stderr.isatty():
        typer.echo(label, err=True)
    with bar(label, total) as advance:
        yield advance


def _print_losses(matrices: dict[str, Any]) -> None:
    """A row for each layer: what was pruned of each matrix, and what it lost."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    layers: dict[str, dict[str, Any]] = {}
    for name, entry in matrices.items():
        layer, _, part = name.removeprefix("layers.").rpartition(".")
        layers.setdefault(layer, {})[part] = entry
    columns = list(dict.fromkeys(part for parts in layers.values() for part in parts))
    table = Table(title="loss (pruned)", box=SIMPLE_HEAD)
    table.add_column("layer", justify="right")
    for column in columns:
        table.add_column(column, justify="right")
    for layer, parts in layers.items():
        cells = [f"{parts[c]['loss']:.4f} ({parts[c]['ratio']:.0%})" if c in parts else "" for c in columns]
        table.add_row(layer, *cells)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _diagnose(llm: LLM, stem: str, plan: Calibration, out: Path | None, memory: int, as_json: bool) -> None:
    from tempfile import TemporaryDirectory

    from narrows.compress.diagnose import RHOS, diagnose, draw, summary

    with TemporaryDirectory() as work:
        rows = diagnose(llm, plan, Path(work), memory, stage)
    sources = list(rows[0]["epsilon"])
    summaries = {source: summary(rows, source) for source in sources if source != "generated"}
    result = {"kind": "epsilon", "model": stem, "tokens": plan.tokens, "seed": plan.seed, "rho": RHOS}
    result |= {"summary": summaries, "rows": rows}
    place = out or Path(f"epsilon-{stem}.png")
    draw(rows, f"{stem}, {plan.tokens:,} tokens", place.with_suffix(".png"))
    place.with_suffix(".json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    if as_json:
        typer.echo(json.dumps(result, indent=2, allow_nan=False))
        return
    _print_epsilon(rows, sources, summaries)
    typer.echo(f"{place.with_suffix('.png')}, {place.with_suffix('.json')}")


def _print_epsilon(rows: list[dict[str, Any]], sources: list[str], summaries: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from narrows.compress.diagnose import RHOS

    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title="epsilon at rho = 0.1", box=SIMPLE_HEAD)
    for column in ("layer", "input of", *sources):
        table.add_column(column, justify="left" if column == "input of" else "right")
    for row in rows:
        found = (f"{row['epsilon'][source][RHOS.index(0.1)]:.3g}" for source in sources)
        table.add_row(str(row["layer"]), row["input"], *found)
    console.print(table)
    for source, line in summaries.items():
        shares = ", ".join(f"{s['nearer']:.0%} at {s['rho']:g} (median ratio {s['ratio']:.2f})" for s in line)
        console.print(f"generated text is nearer to decoding than {source} in {shares} of the matrices")

"""``narrows eval``: the quality suite on one model, against the unmodified one."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from narrows.measure.quality.base import Measure
    from narrows.stack import Stack

FAILED = 1  # exit code when a gate fails


def evaluate(
    model: Annotated[
        str, typer.Argument(help="A short name (smollm2), a .gguf file, a model directory, or a Hugging Face id.")
    ],
    measure: Annotated[
        str | None,
        typer.Option(help="Measures, with settings, e.g. ppl,kl:window=256; default: all whose data is there."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets: wikitext-2, humaneval, gsm8k, ...")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="A text file for ppl and kl.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer items: minutes, not hours.")] = False,
    weights: Annotated[str | None, typer.Option(help="Weight format of the candidate.")] = None,
    stack: Annotated[str | None, typer.Option(help='Parts of the candidate, e.g. "kv=bf16".')] = None,
    baseline: Annotated[
        str | None, typer.Option(help="What to compare with: a stack, or another model; default: the unmodified model.")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Threads.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N items of each measure.")] = None,
    gate: Annotated[bool, typer.Option("--gate", help="Exit with code 1 when a gate fails.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the result, as JSON, to this file; FILE.partial keeps records meanwhile.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            help="Keep every record in this file, and take from it what it has: the unmodified model is not measured "
            "again for the next candidate."
        ),
    ] = None,
) -> None:
    """Measure what a stack costs in quality: each figure with its interval, paired with the unmodified model.

    A run that was stopped goes on where it was when the same command is given again.
    """
    if find_spec("scipy") is None:
        raise ValueError("narrows eval needs scipy: pip install 'narrows[eval]'")
    if data is not None and not data.is_dir():
        raise ValueError(f"--data {data} is not a folder")
    if text is not None and not text.is_file():
        raise ValueError(f"--text {text} is not a file")
    measures = chosen(measure, quick=quick, text=text)
    from narrows.stack import Stack

    parts = Stack.parse(stack or "")
    parts = replace(parts, weights=weights) if weights else parts
    parts.check()
    other_stack, other_model = _baseline(baseline)

    from narrows import LLM
    from narrows.measure.honesty import check_quality
    from narrows.measure.provenance import describe_model, provenance
    from narrows.measure.quality.report import cost_line, print_report
    from narrows.measure.quality.runner import Journal, Subject, token_cost
    from narrows.measure.quality.runner import evaluate as run
    from narrows.models.hub import parent, resolve
    from narrows.progress import bar, resumable

    path = resolve(model)
    other_path = resolve(other_model) if other_model else parent(path)

    def subject(where: Path, its_stack: Stack, name: str) -> Subject:
        loaded = LLM(where, its_stack, num_threads=threads)
        return Subject(loaded, name, describe_model(where)["sha256"])

    candidate = subject(path, parts, "the candidate")
    unmodified = path == other_path and str(parts) == str(other_stack)
    reference = None if unmodified else subject(other_path, other_stack, "the baseline")
    cost = token_cost(candidate.model)
    other_cost = token_cost(reference.model) if reference else cost
    typer.echo(cost_line(cost, other_cost), err=True)

    journal = Journal(records or _partial(out, [str(path), str(other_path), str(parts), str(other_stack)]))
    results: list[dict[str, Any]] = []
    measured = run(measures, candidate, reference, journal, data=data, limit=limit, optional=measure is None, track=bar)
    with resumable(journal.path), closing(journal):
        for result in measured:
            results.append(result)
            if "skipped" in result:
                typer.echo(f"{result['measure']} skipped: {result['skipped']}", err=True)

    done = [r for r in results if "skipped" not in r]
    metrics = [{"measure": r["measure"], **m} for r in done for m in r["metrics"]]
    report = {
        "kind": "eval",
        "stack": str(parts),
        "lossless": parts.lossless and parent(path) == path,
        "unmodified": unmodified,
        "baseline": None
        if unmodified
        else str(other_stack)
        if path == other_path
        else f"{other_path.name} {other_stack}",
        "bytes_per_token": {"candidate": cost["bytes_per_token"], "baseline": other_cost["bytes_per_token"]},
        "cost": {"candidate": cost, "baseline": other_cost},
        "metrics": metrics,
        "measures": [{k: v for k, v in r.items() if k != "metrics"} for r in done],
        "skipped": {r["measure"]: r["skipped"] for r in results if "skipped" in r},
        "passed": all(m.get("passed", True) for m in metrics),
        "quick": quick,
        "limit": limit,
        "provenance": provenance(threads=candidate.model.num_threads, model=path),
    }
    if other_path != path:
        report["baseline_model"] = describe_model(other_path)
    check_quality(report)
    written = json.dumps(report, indent=2, allow_nan=False)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(written + "\n")
    journal.close(remove=records is None)
    typer.echo(written) if as_json else print_report(report)
    if gate and not report["passed"]:
        raise typer.Exit(FAILED)


EPILOG = (
    "Examples:\n\n"
    "narrows eval smollm2 --quick --weights int4\n\n"
    "narrows eval smollm2 --measure ppl,kl:window=256 --text book.txt --weights int8\n\n"
    "narrows eval model.gguf --data data --out quality.json\n\n"
    'narrows eval model.gguf --baseline "weights=bf16" --measure drift:tokens=2048 --gate'
)


def chosen(line: str | None, *, quick: bool, text: Path | None) -> dict[str, Measure]:
    """Measures by name, from ``ppl,kl:window=256,chunks=8``; all of them when `line` is None. Raises StackError."""
    from narrows.measure.quality import MEASURES
    from narrows.methods import build

    words: list[str] = []
    for word in line.split(",") if line else MEASURES:
        # A comma also parts the settings of a measure: a setting has "=" before any ":".
        if words and "=" in word.partition(":")[0]:
            words[-1] += f",{word}"
        else:
            words.append(word.strip())
    measures: dict[str, Measure] = {}
    for word in words:
        built = build("measure", word, MEASURES)
        name, given = word.partition(":")[::2]
        if name in measures:
            raise ValueError(f"--measure names {name} twice")
        if quick:
            keys = [setting.partition("=")[0] for setting in given.split(",") if setting]
            built = replace(built.quick(), **{key: getattr(built, key) for key in keys})
        if text is not None and any(f.name == "text" for f in fields(built)) and "text=" not in given:
            built = replace(built, text=str(text))
        measures[name] = built
    return measures


def _baseline(line: str | None) -> tuple[Stack, str | None]:
    """What --baseline says: the stack, and the model when it is another one."""
    from narrows.stack import REGISTRIES, Stack

    keys = {"weights", *REGISTRIES}
    if line is None:
        return Stack(), None
    if all(word.partition("=")[0] in keys and "=" in word for word in line.split()):
        return Stack.parse(line), None
    return Stack(), line


def _partial(out: Path | None, run: list[str]) -> Path:
    """Where records are kept until the run is done: beside --out, or in the cache under a name of this run."""
    if out is not None:
        return out.with_name(out.name + ".partial")
    from narrows.machine import cache_dir

    return cache_dir() / "eval" / f"{hashlib.sha256(json.dumps(run).encode()).hexdigest()[:16]}.jsonl"

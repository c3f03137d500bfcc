"""``narrows bench peers``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from narrows.measure.peers.cases import DEFAULT, parse_cases

ENGINES = ("llamacpp", "openvino", "transformers", "vllm")


def peers(
    model: Annotated[str, typer.Argument(help="A short name or a .gguf file.")],
    cases: Annotated[
        str, typer.Option(help="What to measure: decode-CONTEXT, prefill-TOKENS, batch-REQUESTS, by commas.")
    ] = DEFAULT,
    rounds: Annotated[int, typer.Option(min=1, help="How often everything is measured, in turn.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs in each process, after one to warm up.")] = 3,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Default: all cores.")] = None,
    llamacpp: Annotated[
        str, typer.Option(help="Folder of llama-bench and llama-batched-bench; auto looks on the PATH.")
    ] = "auto",
    python: Annotated[
        list[str] | None, typer.Option(help="A Python that has a peer, as openvino=PATH; may be repeated.")
    ] = None,
    peer_model: Annotated[
        list[str] | None,
        typer.Option(help="The same weights as a folder, for a peer that cannot read the file, as vllm=DIR."),
    ] = None,
    stack: Annotated[str, typer.Option(help='Parts Narrows uses, e.g. "weights=int4".')] = "",
    quality: Annotated[Path | None, typer.Option(help="Result of `narrows eval`, which a lossy stack needs.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a quiet machine before each process.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the result, as JSON, to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios into this .png or .svg file.")] = None,
) -> None:
    """Narrows beside the peers installed here, on the same weights, in turn: speeds, and ratios paired by round."""
    from statistics import median

    from rich.console import Console

    from narrows.machine import default_threads
    from narrows.measure import honesty
    from narrows.measure.output import write
    from narrows.measure.peers.rounds import run_rounds, summary
    from narrows.measure.peers.systems import Setup, find_systems
    from narrows.measure.provenance import provenance
    from narrows.models.hub import resolve
    from narrows.stack import Stack

    picked, path = parse_cases(cases), resolve(model)
    figures = honesty.quality_of(Stack.parse(stack), path, [quality] if quality else None)
    setup = Setup(
        model=path,
        threads=threads or default_threads()[0],
        repeats=repeats,
        stack=stack,
        quality=quality,
        llamacpp=None if llamacpp == "auto" else Path(llamacpp),
        pythons=_by_engine("--python", python),
        models=_by_engine("--peer-model", peer_model),
    )
    systems, skipped = find_systems(setup)
    log = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    for row in skipped:
        log.print(f"without {row['system']}: {row['reason']} ({row['get']})")
    rows, failed = run_rounds(systems, picked, rounds, wait=wait, note=log.print)
    lines = summary(systems, picked, rows)
    if not lines:
        raise ValueError(f"nothing could be measured: {'; '.join(failed.values())}")
    bounds = [line["bandwidth_gigabytes"] for line in lines if "bandwidth_gigabytes" in line]
    result: dict[str, Any] = {"kind": "peers", "rows": lines}
    result |= {"bandwidth_gigabytes": median(bounds)} if bounds else {}
    result |= {"stack": str(Stack.parse(stack)), "settings": {"threads": setup.threads, "repeats": repeats}}
    result |= {"quality": figures} if figures else {}
    versions = {s.name: s.version for s in systems if s.beside}
    versions |= {
        row["system"]: row["version"] for row in rows if "version" in row
    }  # of programs, which say it as they run
    result |= {"peers": versions, "skipped": skipped, "failed": failed}
    result |= {"rounds": rows, "provenance": provenance(threads=setup.threads, model=path)}
    text = write(result, out)
    if plot is not None:
        from narrows.measure.plot import ratios

        ratios([result], plot)
    if as_json:
        typer.echo(text)
        return
    wide = None if sys.stdout.isatty() else 100  # a file or a pipe has no edge
    Console(width=wide).print(_table(f"{path.name}, {setup.threads} threads", lines))
    if figures:
        typer.echo(honesty.line(figures))
    for name, reason in failed.items():
        log.print(f"{name}: {reason}")


def _by_engine(option: str, given: list[str] | None) -> dict[str, Path]:
    """Parses ``openvino=PATH``. Raises ValueError naming the option."""
    found = {}
    for text in given or ():
        engine, equals, path = text.partition("=")
        if engine not in ENGINES or not equals or not path:
            raise ValueError(f"{option} is {text!r}; it must be ENGINE=PATH, ENGINE one of {', '.join(ENGINES)}")
        found[engine] = Path(path).expanduser()
        if not found[engine].exists():
            raise ValueError(f"{option} {engine}: there is no {path}")
    return found


def _table(title: str, lines: list[dict[str, Any]]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    view = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("case", "system"):
        view.add_column(heading, no_wrap=True)
    for heading in ("tokens/s", "MB/token", "of bound", "Narrows is", "noisy"):
        view.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        speed = "{median:.4g} ({min:.4g}..{max:.4g})".format(**line["tokens_per_second"])
        size = f"{line['bytes_per_token'] / 1e6:,.1f}" if "bytes_per_token" in line else ""
        share = f"{line['bandwidth_share']:.0%}" if "bandwidth_share" in line else ""
        ratio = (
            "{median:.2f}x ({min:.2f}..{max:.2f})".format(**line["narrows_ratio"]) if "narrows_ratio" in line else ""
        )
        noisy = f"{line['noisy']} of {line['rounds']}" if line["noisy"] else ""
        view.add_row(line["case"], line["system"], speed, size, share, ratio, noisy)
    view.caption = "; ".join(
        dict.fromkeys(f"{row['system']} ran {row['weights']}" for row in lines if row["weights"] != "the file")
    )
    return view

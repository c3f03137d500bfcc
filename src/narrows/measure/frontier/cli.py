"""``narrows frontier``: variants of a model, by bytes per token and quality."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

EPILOG = (
    "Example: narrows frontier plan.toml --data data --out frontier.json --plot frontier.png\n\n"
    "A plan names a model, measures as for eval, and variants:\n\n"
    'model = "smollm2"\n\n'
    'measure = "kl:text=own"\n\n'
    "[[variant]]\n\n"
    'name = "int{bits}"\n\n'
    'stack = "weights=int{bits}"\n\n'
    "each = { bits = [8, 4] }\n\n"
    "[[variant]]\n\n"
    'name = "2:4 int8"\n\n'
    'compress = "--pattern 2:4 --bits 8"'
)


def frontier(
    plan: Annotated[Path, typer.Argument(help="A TOML file: model, measure and variants.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets, {data} in the plan.")] = None,
    metric: Annotated[str, typer.Option(help="What is compared and drawn: a measure and its metric.")] = "kl mean",
    work: Annotated[
        Path | None, typer.Option(help="Folder of what is done; default: beside the plan. The command goes on from it.")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the result, as JSON, to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this .png or .svg file.")] = None,
) -> None:
    """Make and measure variants of a model: which give the best quality for their bytes per token.

    A run that was stopped goes on where it was when the same command is given again.
    """
    from narrows.measure import plot as drawing
    from narrows.measure.frontier.plan import Plan, points, run
    from narrows.measure.output import with_bar, write
    from narrows.measure.provenance import provenance
    from narrows.models.hub import resolve
    from narrows.progress import resumable

    measure, _, name = metric.partition(" ")
    found = Plan.read(plan, data)
    path = resolve(found.model)
    options = ["--threads", str(threads)] if threads else []
    folder = work or plan.with_suffix(".work")
    made = run(found, folder, options, ["--data", str(data)] if data else [])
    with resumable(folder):
        rows = list(with_bar(made, len(found.variants), "variants"))
    drawn = points(rows, measure, name)
    if not drawn:
        known = dict.fromkeys(f"{m['measure']} {m['metric']}" for row in rows for m in row["metrics"])
        raise ValueError(f"--metric {metric!r} is not one of {', '.join(known)}")
    result: dict[str, Any] = {
        "kind": "frontier",
        "metric": metric,
        "measure": found.measure,
        "points": drawn,
        "rows": rows,
    }
    written = write(result | {"provenance": provenance(threads=threads, model=path)}, out)
    if plot is not None:
        drawing.frontier(drawn, path.name, metric, plot)
    typer.echo(written) if as_json else _print(drawn, metric)


def _print(drawn: list[dict[str, Any]], metric: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for column in ("variant", "MB/token", metric, "range", "beaten by"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    for p in sorted(drawn, key=lambda p: -p["bytes_per_token"]):
        low, high = p["interval"] or (p["min"], p["max"])
        spread = f"{low:.4g}..{high:.4g}" if low < high else ""
        size = f"{p['bytes_per_token'] / 1e6:,.2f}"
        table.add_row(p["name"], size, f"{p['value']:.4g}", spread, p["beaten_by"] or "")
    Console().print(table)

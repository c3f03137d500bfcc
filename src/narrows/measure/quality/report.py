"""What a run of the quality suite prints: a table of figures beside the bytes they cost."""

from __future__ import annotations

from typing import Any

WIDTH = 160


def print_report(result: dict[str, Any]) -> None:
    """Prints a result of ``narrows eval``: the bytes per token first, for no quality is shown without them."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH  # in a file or a pipe, lines are not cut to a window that is not there
    cost = result["cost"]
    console.print(
        f"[bold]{result['stack']}[/bold], against {result['baseline'] or 'nothing: this is the unmodified model'}"
    )
    console.print(cost_line(cost["candidate"], cost["baseline"]), highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    columns = {"figure": "left", "n": "right", "value [95 %]": "right", "baseline": "right"}
    columns |= {"difference [95 %]": "right", "p": "right", "gate": "left"}
    rows = [(f"{m['measure']}.{m['metric']}", str(m["n"]), *_cells(m)) for m in result["metrics"]]
    used = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    for i, (heading, side) in enumerate(columns.items()):
        if i in used:
            table.add_column(heading, justify="left" if side == "left" else "right", no_wrap=heading != "gate")
    for row in rows:
        table.add_row(*(row[i] for i in used))
    if rows:
        console.print(table)
    for measure in result["measures"]:
        for why, count in measure["left_out"].items():
            console.print(f"{measure['measure']}: {count} items left out: {why}", highlight=False, markup=False)
    for name, why in result["skipped"].items():
        console.print(f"{name} skipped: {why}", highlight=False, markup=False)


def cost_line(candidate: dict[str, float], baseline: dict[str, float]) -> str:
    """Bytes per token of both, in words."""
    share = candidate["bytes_per_token"] / baseline["bytes_per_token"]
    return (
        f"{candidate['bytes_per_token'] / 1e6:,.2f} MB per token at {candidate['context']:,} tokens of context "
        f"({candidate['weight_bytes'] / 1e6:,.2f} weights + {candidate['kv_bytes'] / 1e6:,.2f} KV), "
        f"{share:.1%} of the baseline's {baseline['bytes_per_token'] / 1e6:,.2f} MB"
    )


def _cells(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    change = row.get("ratio") or row.get("difference")
    sign = "x " if "ratio" in row else ""
    gate = f"{'pass' if row['passed'] else 'FAIL'}: {row['gate']}" if "gate" in row else ""
    return (
        _estimate(row),
        f"{row['baseline']:.3g}" if "baseline" in row else "",
        sign + _estimate(change, 4) if change else "",
        f"{row['p_value']:.3g}" if "p_value" in row else "",
        gate,
    )


def _estimate(estimate: dict[str, Any], digits: int = 3) -> str:
    bounds = estimate["interval"]
    return f"{estimate['value']:.{digits}g}" + (f" [{bounds[0]:.{digits}g}, {bounds[1]:.{digits}g}]" if bounds else "")

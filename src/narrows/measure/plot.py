"""Plots of results, for documents. They need matplotlib: ``pip install 'narrows[plot]'``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLORS = {"llama.cpp": "#d08c2f", "vLLM": "#5b7fb5", "OpenVINO": "#6a9a6a", "transformers": "#a05f8f"}


def speeds(result: dict[str, Any], out: Path) -> None:
    """Of `bench decode` or `prefill`: tokens/s by context or prompt length, with the range over repeats.

    A line per threads, batch and stack; dashed, in its color, the bandwidth bound of the same bytes.
    """
    prompt = result["kind"] == "prefill"
    at = "tokens" if prompt else "context"
    drawn, axes = figure()
    lines: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        lines.setdefault((row["threads"], row.get("batch", 1), row.get("stack", "")), []).append(row)
    for (threads, batch, stack), line in lines.items():
        line = sorted(line, key=lambda row: row[at])
        places = [row[at] for row in line]
        low, median, high = ([row["tokens_per_second"][key] for row in line] for key in ("min", "median", "max"))
        spread = [[m - x for m, x in zip(median, low, strict=True)], [x - m for m, x in zip(median, high, strict=True)]]
        label = _count(threads, "thread") + ("" if prompt else f", {_count(batch, 'request')}")
        label += f", {stack}" if stack else ""
        bars = axes.errorbar(places, median, yerr=spread, marker="o", markersize=4, capsize=3, label=label)
        color = bars.lines[0].get_color()
        bounds = [m / row["bandwidth_share"] for m, row in zip(median, line, strict=True)]
        axes.plot(places, bounds, linestyle="--", marker="_", linewidth=1, color=color)
    axes.plot([], [], linestyle="--", color="black", linewidth=1, label="bandwidth bound of the same bytes")
    facts = result["provenance"]
    title = f"{facts['model']['name']}\n{facts['cpu']}, {facts['isa']}"
    axes.set(title=title, xlabel="tokens of the prompt" if prompt else "tokens of context", ylabel="tokens/s")
    if prompt:  # its bound is far above it
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, None)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save(drawn, out)


def ratios(results: list[dict[str, Any]], out: Path) -> None:
    """Of `bench peers`: how many times a peer's speed Narrows has, a panel per model, with the range over rounds."""
    tallest = max(sum("narrows_ratio" in row for row in result["rows"]) for result in results)
    drawn, panels = figure(len(results), height=1.6 + 0.28 * max(tallest, 1))
    for axes, result in zip([panels] if len(results) == 1 else panels, results, strict=True):
        bars = [row for row in result["rows"] if "narrows_ratio" in row]
        for at, row in enumerate(bars):
            ratio = row["narrows_ratio"]
            span = [[ratio["median"] - ratio["min"]], [ratio["max"] - ratio["median"]]]
            bar = {"color": COLORS[row["system"]], "ecolor": "#444", "capsize": 2}
            axes.barh(at, ratio["median"] - 1, left=1, xerr=span, **bar)
            axes.text(max(ratio["max"], 1), at, f"  {ratio['median']:.2f}x", va="center")
        labels = [f"{row['case']}, {row['system']}{' (noisy)' * row['noisy_ratio']}" for row in bars]
        axes.set_yticks(range(len(bars)), labels)
        axes.invert_yaxis()
        axes.axvline(1, color="black", linewidth=1)
        axes.set_xscale("log")  # twice as fast is as far to the right as half as fast is to the left
        axes.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
        axes.minorticks_off()
        axes.margins(x=0.18)
        axes.set(title=result["provenance"]["model"]["name"], xlabel="Narrows / peer, tokens/s")
    save(drawn, out)


def drafts(result: dict[str, Any], out: Path) -> None:
    """Of `bench draft`: speed over plain decoding by draft, with the range over prompts, a panel per number answered
    together and temperature; beside each the tokens kept a forward.
    """
    rows = [row for row in result["rows"] if row["draft"] != "none"]
    parts = list(dict.fromkeys((row["batch"], row["temperature"]) for row in rows))
    drawn, panels = figure(len(parts), height=1.6 + 0.35 * len(rows) / max(len(parts), 1))
    for axes, part in zip([panels] if len(parts) == 1 else panels, parts, strict=True):
        some = [row for row in rows if (row["batch"], row["temperature"]) == part]
        for at, row in enumerate(some):
            ratio = row["plain_ratio"]
            span = [[ratio["median"] - ratio["min"]], [ratio["max"] - ratio["median"]]]
            axes.barh(at, ratio["median"] - 1, left=1, xerr=span, color="#2f6db5", ecolor="#444", capsize=2)
            words = f"  {ratio['median']:.2f}x, {row['acceptance_length']:.2f} kept"
            axes.text(max(ratio["max"], 1), at, words, va="center", fontsize=8)
        axes.set_yticks(range(len(some)), [row["draft"] for row in some])
        axes.invert_yaxis()
        axes.axvline(1, color="black", linewidth=1)
        axes.margins(x=0.4)
        title = f"{_count(part[0], 'request')}, temperature {part[1]:g}"
        axes.set(title=title, xlabel="tokens/s, with drafts / plain")
        axes.grid(axis="x", alpha=0.3)
    drawn.suptitle(result["provenance"]["model"]["name"])
    save(drawn, out)


def frontier(points: list[dict[str, Any]], title: str, label: str, out: Path) -> None:
    """Of `narrows frontier`: a value against bytes per token, its interval or range over runs, a line along what none
    beats.
    """
    drawn, axes = figure(height=5.5)
    for on, color in ((True, "#2f6db5"), (False, "#999")):
        some = [p for p in points if (p["beaten_by"] is None) is on]
        sizes, values = [p["bytes_per_token"] / 1e6 for p in some], [p["value"] for p in some]
        bounds = [p.get("interval") or (p["min"], p["max"]) for p in some]
        spread = [[max(0, v - b[0]) for v, b in zip(values, bounds, strict=True)]]
        spread += [[max(0, b[1] - v) for v, b in zip(values, bounds, strict=True)]]
        axes.errorbar(sizes, values, yerr=spread, fmt="o", color=color, markersize=5, capsize=3)
    for p in points:
        place = (p["bytes_per_token"] / 1e6, p["value"])
        axes.annotate(p["name"], place, xytext=(5, 4), textcoords="offset points", fontsize=8)
    line = sorted((p["bytes_per_token"] / 1e6, p["value"]) for p in points if p["beaten_by"] is None)
    axes.plot([x for x, _ in line], [y for _, y in line], linewidth=1, color="#2f6db5")
    if all(p["min"] > 0 for p in points):
        axes.set_yscale("log")
    axes.margins(x=0.15)
    axes.set(title=title, xlabel="MB per token", ylabel=label)
    axes.grid(alpha=0.3)
    save(drawn, out)


def load(result: dict[str, Any], out: Path) -> None:
    """Of `bench serve`: the share of requests within each time to first token, per further token, and in all.

    Dashed, the bounds of the SLO; requests that failed keep the lines below 1.
    """
    from narrows.measure.load.figures import BOUNDED

    names = {"ttft": "to the first token", "tpot": "per further token", "e2e": "in all"}
    drawn, panels = figure(len(BOUNDED), height=4.5)
    requests = result["requests_sent"]
    num_failed = sum(request["error"] is not None for request in requests)
    for axes, name in zip(panels, BOUNDED, strict=True):
        values = sorted(value for request in requests if (value := request[name]) is not None)
        num_all = max(1, len(values) + num_failed)  # an answer of one token has no further
        axes.step(values, [(i + 1) / num_all for i in range(len(values))], where="post")
        if name in result["slo"]:
            axes.axvline(result["slo"][name], linestyle="--", color="black", linewidth=1)
        axes.set(xlabel=f"seconds {names[name]}", ylim=(0, 1.02))
        if values and values[0] > 0:
            axes.set_xscale("log")
            axes.xaxis.get_major_locator().set_params(subs=(1, 2, 5))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="share of requests")
    drawn.suptitle(f"{result['server']}: {result['good']} of {len(requests)} requests are good")
    save(drawn, out)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def figure(panels: int = 1, height: float = 4.5) -> tuple[Any, Any]:
    """A figure and its panels, side by side. Raises ValueError without matplotlib."""
    try:
        import matplotlib  # pyright: ignore[reportMissingImports]

        matplotlib.use("Agg")
        from matplotlib import pyplot  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("plots need matplotlib: pip install 'narrows[plot]'") from None
    return pyplot.subplots(1, panels, figsize=(7 * panels, height), layout="constrained")


def save(drawn: Any, out: Path) -> None:
    """Writes a figure as the picture that the name of `out` says."""
    out.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(out, dpi=150)

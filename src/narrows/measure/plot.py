"""Plots of results, for documents. They need matplotlib: ``pip install 'narrows[plot]'``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLORS = {"llama.cpp": "#d08c2f", "vllm": "#5b7fb5", "openvino": "#6a9a6a"}


def decode(rows: list[dict[str, Any]], title: str, out: Path) -> None:
    """Tokens/s against context with the range over repeats, one line per threads and batch; dashed, what bounds it."""
    figure, axes = _figure()
    lines: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["threads"], row["batch"]), []).append(row)
    for (threads, batch), line in lines.items():
        contexts = [row["context"] for row in line]
        low, median, high = ([row["tokens_per_second"][key] for row in line] for key in ("min", "median", "max"))
        (drawn,) = axes.plot(contexts, median, marker="o", label=f"batch {batch}, {threads} threads")
        axes.fill_between(contexts, low, high, color=drawn.get_color(), alpha=0.2)
        bounds = [row["tokens_per_second"]["median"] / row["bandwidth_share"] for row in line]
        axes.plot(contexts, bounds, linestyle="--", color=drawn.get_color(), label="bandwidth bound")
    axes.set(title=title, xlabel="context, tokens", ylabel="tokens/s", ylim=(0, None))
    axes.legend()
    _save(figure, out)


def ratios(results: list[dict[str, Any]], out: Path) -> None:
    """Of results of bench/beside.py: how many times a peer's speed Narrows has, a panel per model, with the range."""
    figure, panels = _figure(len(results))
    for axes, result in zip([panels] if len(results) == 1 else panels, results, strict=True):
        bars = [row for row in result["rows"] if "narrows_ratio" in row]
        for at, row in enumerate(bars):
            ratio = row["narrows_ratio"]
            span = [[ratio["median"] - ratio["min"]], [ratio["max"] - ratio["median"]]]
            axes.barh(at, ratio["median"], xerr=span, color=COLORS[row["system"]], ecolor="#444", capsize=2)
            axes.text(ratio["max"], at, f"  {ratio['median']:.2f}x", va="center")
        labels = [f"{row['case']}, {row['system']}{' (noisy)' * row['noisy_ratio']}" for row in bars]
        axes.set_yticks(range(len(bars)), labels)
        axes.invert_yaxis()
        axes.axvline(1, color="black", linewidth=1)
        axes.margins(x=0.15)
        axes.set(title=result["provenance"]["model"]["name"], xlabel="Narrows / peer, tokens/s", xlim=(0, None))
    _save(figure, out)


def _figure(panels: int = 1) -> tuple[Any, Any]:
    try:
        from matplotlib import pyplot  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("plots need matplotlib: pip install 'narrows[plot]'") from None
    return pyplot.subplots(1, panels, figsize=(7 * panels, 4.5), layout="constrained")


def _save(figure: Any, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)

"""Writes docs/performance.md, docs/quality.md, the tables of README.md and of pages of techniques, and pictures.

All come from bench/results: `python -m narrows.measure.report` in the root of a checkout; with ``--check`` it only says
whether the texts are in step. What stands above the tables is in docs/performance.head.md and docs/quality.head.md.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from .tables import estimate, source, spread, table
from .techniques import drafts, frontier, kernels, loads, stacks

Result = dict[str, Any]

ORDER = ("smollm2", "qwen-0.5b", "qwen-1.5b", "gemma-270m")  # of models; others follow by name
PANELS = 2  # models in the picture of ratios
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->"
NEEDLE = re.compile(r"(\D+)-(\d+)")  # a figure of the needle grid: its kind and length


def results(folder: Path, kind: str) -> list[Result]:
    """The result files ``KIND-MODEL*.json`` of a folder, by their models, then by name; "stem" names them."""

    def place(path: Path) -> tuple[int, str]:
        name = path.stem.removeprefix(f"{kind}-")
        return next((i for i, model in enumerate(ORDER) if name.startswith(model)), len(ORDER)), name

    return [
        {**json.loads(path.read_text()), "stem": path.stem} for path in sorted(folder.glob(f"{kind}-*.json"), key=place)
    ]


def case_title(name: str) -> str:
    """What a case of `bench peers` is, in words."""
    kind, _, count = name.partition("-")
    tokens = int(count.removesuffix("k")) * (1024 if count.endswith("k") else 1)
    if kind == "batch":
        return f"{tokens} requests together"
    if kind == "prefill":
        return f"prompt of {tokens:,} tokens"
    return f"decode at {tokens:,} tokens of context" if tokens else "decode, empty context"


def peers_table(result: Result, first: str) -> str:
    """A row per case, a column per peer; Narrows' figure is that of `narrows bench`."""
    lines = {(line["case"], line["system"]): line for line in result["rows"]}
    peers = [name for name in dict.fromkeys(system for _, system in lines) if not name.startswith("narrows")]
    rows = []
    for case in dict.fromkeys(case for case, _ in lines):
        own = lines.get((case, "narrows"))
        share = f"{own['bandwidth_share']:.0%}" if own and "bandwidth_share" in own else ""
        size = f"{own['bytes_per_token'] / 1e6:,.1f}" if own and "bytes_per_token" in own else ""
        speed = spread(own["tokens_per_second"]) if own else ""
        rows.append([case_title(case), speed, size, share, *(_peer(lines.get((case, name))) for name in peers)])
    return table([first, "Narrows, tokens/s", "MB/token", "of the bound", *peers], rows)


def performance(found: list[Result], head: str) -> str:
    """docs/performance.md."""
    text = head
    for result in found:
        facts = result["provenance"]
        text += f"\n## {facts['model']['name']}\n\n{peers_table(result, 'case')}\n"
        ran = {line["system"]: line.get("weights", "the file") for line in result["rows"]}
        notes = [f"{system} ran {weights}." for system, weights in ran.items() if weights != "the file"]
        notes += [f"Without {row['system']}: {row['reason']}." for row in result.get("skipped", ())]
        notes += [f"{name} failed: {why}." for name, why in result.get("failed", {}).items()]
        text += "".join(f"- {note}\n" for note in notes) + "\n" * bool(notes)
        bandwidth = f"{result['bandwidth_gigabytes']:.1f} GB/s read bandwidth"
        text += f"{facts['cpu']}, {facts['isa']}, {facts['threads']} threads, {bandwidth}; {source(facts)}\n"
    return text


def quality(found: list[Result], head: str) -> str:
    """docs/quality.md."""
    text, model = head, None
    for result in found:
        facts = result["provenance"]
        if facts["model"]["name"] != model:
            model = facts["model"]["name"]
            text += f"\n## {model}\n"
        sizes = result["bytes_per_token"]
        against = f"against `{result['baseline']}`" if result.get("baseline") else "the unmodified model"
        text += f"\n### `{result['stack']}`\n\n{sizes['candidate'] / 1e6:,.2f} MB/token, {against}"
        text += f" at {sizes['baseline'] / 1e6:,.2f} MB/token.\n\n" if result.get("baseline") else ".\n\n"
        grid = [m for m in result["metrics"] if m["measure"] == "needle" and NEEDLE.fullmatch(m["metric"])]
        rows = [_figure(m) for m in result["metrics"] if m not in grid]
        if rows:
            text += table(["figure", "value [95 %]", "baseline", "difference [95 %]", "p", "n"], rows) + "\n"
        if grid:
            text += _grid(grid) + "\n"
        skipped = result.get("skipped", {}).items()
        notes = [f"{name} skipped: {why}" for name, why in skipped]
        notes += [
            f"{m['measure']}: {count} items left out: {why}"
            for m in result["measures"]
            for why, count in m["left_out"].items()
        ]
        text += "".join(f"- {note}\n" for note in notes) + "\n" * bool(notes)
        text += f"{facts['cpu']}, {facts['isa']}; {source(facts)}\n"
    return text


def filled(text: str, tables: str) -> str:
    """The text with the tables between its two markers."""
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}{tables}{END}{rest.split(END, 1)[1]}"


def wanted(root: Path) -> dict[Path, str]:
    """The text of every generated file. Those without results are left out."""
    folder, docs = root / "bench" / "results", root / "docs"
    texts = {}
    if found := results(folder, "peers"):
        texts[docs / "performance.md"] = performance(found, (docs / "performance.head.md").read_text())
        first = found[0]["provenance"]["model"]["name"].split(".")[0]
        texts[root / "README.md"] = filled((root / "README.md").read_text(), peers_table(found[0], first))
    if found := results(folder, "eval"):
        texts[docs / "quality.md"] = quality(found, (docs / "quality.head.md").read_text())
    parts = (frontier, "frontier"), (kernels, "kernel"), (stacks, "decode")
    if found := [made(results(folder, kind)) for made, kind in parts if results(folder, kind)]:
        page = docs / "sparse-decoding.md"
        texts[page] = filled(page.read_text(), "".join(found))
    for made, kind, name in ((drafts, "draft", "speculation.md"), (loads, "serve", "serving.md")):
        if found := results(folder, kind):
            texts[docs / name] = filled((docs / name).read_text(), made(found))
    return texts


def main(arguments: list[str], root: Path | None = None) -> int:
    """0 when all is written, or in step."""
    root, stale = root or Path.cwd(), []
    for path, text in wanted(root).items():
        if "--check" not in arguments:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(root)))
    if stale:
        again = "python -m narrows.measure.report"
        print(f"{', '.join(stale)}: not what bench/results says; run {again}", file=sys.stderr)
    return bool(stale)


def draw(root: Path) -> None:
    """The pictures beside the tables. Needs matplotlib."""
    from narrows.measure import plot

    folder, pictures = root / "bench" / "results", root / "docs" / "img"
    if found := results(folder, "peers"):
        plot.ratios(found[:PANELS], pictures / "peers.png")
    for result in results(folder, "draft"):
        plot.drafts(result, pictures / f"{result['stem']}.png")
    for result in results(folder, "frontier"):
        name = result["provenance"]["model"]["name"]
        plot.frontier(result["points"], name, result["metric"], pictures / f"{result['stem']}.png")


def _peer(line: dict[str, Any] | None) -> str:
    """`tokens/s (Narrows is x times as fast, range)`."""
    if line is None or "narrows_ratio" not in line:
        return ""
    noisy = ", noisy" if line["noisy_ratio"] else ""
    ratio = "**{median:.2f}x**, {min:.2f}..{max:.2f}".format(**line["narrows_ratio"])
    return f"{line['tokens_per_second']['median']:.4g} ({ratio}{noisy})"


def _figure(metric: dict[str, Any]) -> list[str]:
    change = metric.get("ratio") or metric.get("difference")
    return [
        f"{metric['measure']} {metric['metric']}",
        estimate(metric),
        f"{metric['baseline']:.4g}" if "baseline" in metric else "",
        ("x " if "ratio" in metric else "") + estimate(change) if change else "",
        f"{metric['p_value']:.3g}" if "p_value" in metric else "",
        f"{metric['n']:,}",
    ]


def _grid(metrics: list[dict[str, Any]]) -> str:
    """Kinds of needle down, lengths across."""
    cells = {(m[1], int(m[2])): row for row in metrics if (m := NEEDLE.fullmatch(row["metric"]))}
    lengths = sorted({length for _, length in cells})
    rows = []
    for kind in dict.fromkeys(kind for kind, _ in cells):
        line = [cells.get((kind, length)) for length in lengths]
        rows.append([kind, *(f"{estimate(row)}, n {row['n']}" if row else "" for row in line)])
    return table(["needle", *(f"{length:,} tokens" for length in lengths)], rows)


if __name__ == "__main__":
    if "--check" not in sys.argv:
        draw(Path.cwd())
    sys.exit(main(sys.argv[1:]))

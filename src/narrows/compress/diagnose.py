"""How well the inputs of a calibration stand for those a model meets while it generates.

SparseDecoding, https://arxiv.org/abs/2610.12327, theorem A.1: with the largest eigenpairs U, L of the Hessian of
held-out decoding, epsilon = || L^-1/2 U^T H U L^-1/2 - I || is the largest relative gap, in those directions, between
the loss that is minimised and the one that counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ..types import F32
from .hessians import HEAD, INPUT_NAMES, MATRICES, Hessian, Input, collect, passes
from .run import Track, untracked
from .sequences import Calibration, sequences

if TYPE_CHECKING:
    from narrows import LLM

RHOS = (0.01, 0.02, 0.05, 0.10, 0.20, 0.50)  # shares of the directions
HELD_OUT = "held-out"


def epsilon(decode: F32, other: F32, rhos: Sequence[float] = RHOS) -> list[float]:
    """Epsilon for the top share rho of the directions of `decode`, both [n, n], for each rho."""
    n = len(decode)
    counts = [max(1, int(np.ceil(rho * n))) for rho in rhos]
    values, vectors = np.linalg.eigh(decode.astype(np.float64))
    top = vectors[:, ::-1][:, : max(counts)] / np.sqrt(np.maximum(values[::-1][: max(counts)], 1e-30))
    inner = top.T @ other.astype(np.float64) @ top - np.eye(max(counts))
    return [float(np.abs(np.linalg.eigvalsh(inner[:k, :k])).max()) for k in counts]


def diagnose(llm: LLM, plan: Calibration, work: Path, memory: int, track: Track = untracked) -> list[dict[str, Any]]:
    """Epsilon of every source for each input of each layer: {"layer", "input", "modules", "epsilon": {source: [rho]}}.

    The sources are those for which `plan` has what they need. Held-out decoding has other prompts and another seed; its
    samples, and those of the sources, are kept in `work`.
    """
    own = replace(plan, source="generated", part=(0, 2))
    plans = {
        HELD_OUT: replace(own, seed=plan.seed + 1_000_003, part=(1, 2)),
        "generated": own,
        "prompts+generated": replace(own, source="prompts+generated"),
    }
    if plan.text is not None:
        plans["text"] = replace(plan, source="text")
    texts = {}
    for name, its_plan in plans.items():
        with track(f"writing: {name}", plan.tokens) as advance:
            store = work / f"{'held-out' if name == HELD_OUT else 'generated'}.jsonl"
            texts[name] = sequences(llm, its_plan, store, advance)
    spec, rows = llm.loaded.spec, []
    for group in passes(spec, range(spec.num_layers), memory // len(plans)):
        wanted = [(layer, which) for layer in group for which in range(HEAD)]
        sums: dict[str, dict[Input, Hessian]] = {}
        for name, chosen in texts.items():
            with track(f"reading inputs: {name}", plan.tokens) as advance:
                sums[name] = collect(llm, chosen, wanted, advance)
        with track("comparing", len(wanted)) as advance:
            for key in wanted:
                decode = sums[HELD_OUT].pop(key).finish()
                found = {n: epsilon(decode, sums[n].pop(key).finish()) for n in plans if n != HELD_OUT}
                modules = sum(which == key[1] for which in MATRICES.values())
                rows.append({"layer": key[0], "input": INPUT_NAMES[key[1]], "modules": modules, "epsilon": found})
                advance(1)
    return rows


def summary(rows: Sequence[Mapping[str, Any]], source: str) -> list[dict[str, float]]:
    """For each rho: the share of modules where generated text is nearer than `source`, and the median ratio."""
    result = []
    for i, rho in enumerate(RHOS):
        pairs = [(r["modules"], r["epsilon"]["generated"][i], r["epsilon"][source][i]) for r in rows]
        nearer = sum(n for n, own, other in pairs if own < other) / sum(n for n, _, _ in pairs)
        ratios = [other / own for n, own, other in pairs for _ in range(n) if own > 0]
        result.append({"rho": rho, "nearer": nearer, "ratio": median(ratios) if ratios else 1.0})
    return result


def draw(rows: Sequence[Mapping[str, Any]], title: str, out: Path, rho: float = 0.10) -> None:
    """A panel for each input, epsilon by layer, a line for each source."""
    try:
        import matplotlib  # pyright: ignore[reportMissingImports]

        matplotlib.use("Agg")
        from matplotlib import pyplot  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("plots need matplotlib: pip install 'narrows[plot]'") from None
    names = INPUT_NAMES[:HEAD]
    figure, panels = pyplot.subplots(1, len(names), figsize=(14, 3.6), layout="constrained", sharex=True)
    for axes, name in zip(panels, names, strict=True):
        own = [row for row in rows if row["input"] == name]
        for source in own[0]["epsilon"]:
            line = [row["epsilon"][source][RHOS.index(rho)] for row in own]
            axes.plot([row["layer"] for row in own], line, marker="o", markersize=3, label=source)
        axes.set(title=f"input of {name}", xlabel="layer", yscale="log")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f"epsilon, rho = {rho:g}")
    panels[0].legend(fontsize="small")
    figure.suptitle(title)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    pyplot.close(figure)

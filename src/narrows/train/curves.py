"""The curves of a training as a picture; it needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..measure.plot import figure, save

SMOOTH = 0.05  # of a batch's loss in the line


def draw(history: dict[str, Any], title: str, out: Path) -> bool:
    """Losses by batch, and how often drafts are right; whether it could be drawn."""
    try:
        drawn, (left, right) = figure(2)
    except ValueError:
        return False
    losses = np.array(history["loss"])
    line = losses.copy()
    for i in range(1, len(line)):
        line[i] = line[i - 1] + SMOOTH * (losses[i] - line[i - 1])
    left.plot(range(1, len(losses) + 1), losses, linewidth=0.5, alpha=0.4)
    left.plot(range(1, len(losses) + 1), line, label="training, all steps")
    tests = history["tests"]
    batches = [test["batch"] for test in tests]
    left.plot(batches, [test["test_loss"] for test in tests], marker="o", markersize=3, label="held out, first token")
    left.set(title=title, xlabel="batch", ylabel="cross-entropy")
    for n, shares in enumerate(zip(*(test["right"] for test in tests), strict=True), 1):
        right.plot(batches, shares, marker="o", markersize=3, label=f"first {n} right" if n > 1 else "first right")
    right.set(title="greedy drafts on held-out text", xlabel="batch", ylabel="share", ylim=(0, 1))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    save(drawn, out)
    return True

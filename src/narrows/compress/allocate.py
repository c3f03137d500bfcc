"""How much to prune where: a share for each matrix, from what pruning was seen to cost it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..types import F32
from .base import Solver, relative_loss
from .grid import Grid
from .pattern import Pattern

STEP = 0.025  # of a ratio
REACH = 0.2  # ratios go this far from the average
SAMPLE = 512  # rows of a matrix that are pruned to learn its cost


@dataclass(frozen=True, slots=True)
class Cost:
    """What a matrix loses, as a share of its output's energy, by the share of it that is pruned."""

    size: int  # weights
    ratios: list[float]
    losses: list[float]

    def at(self, ratio: float) -> float:
        """Between the ratios measured the logarithm of the loss is taken to be linear."""
        return float(np.exp(np.interp(ratio, self.ratios, np.log(np.maximum(self.losses, 1e-12)))))


def measure(solver: Solver, weights: F32, prepared: object, hessian: F32, ratio: float) -> Cost:
    """The cost of a matrix [rows, cols] about a ratio, measured by pruning some of its rows."""
    ratios = [float(np.clip(r, 0.02, 0.98)) for r in (ratio - REACH, ratio, ratio + REACH)]
    sample = np.ascontiguousarray(weights[:: -(-len(weights) // SAMPLE)])
    exact = Grid(bits=16)
    losses = []
    for r in ratios:
        solved = solver.solve(sample, prepared, Pattern(ratio=r), exact)
        losses.append(relative_loss(sample, solved.weights(exact), hessian))
    return Cost(weights.size, ratios, losses)


def allocate(costs: Mapping[str, Cost], ratio: float) -> dict[str, float]:
    """Ratios by name with an average of `ratio` over all weights, and about the least sum of losses: from the lowest
    ratios on, whoever loses least for a weight more is pruned a step further."""
    chosen = {name: cost.ratios[0] for name, cost in costs.items()}
    left = sum(cost.size * (ratio - chosen[name]) for name, cost in costs.items())

    def price(name: str) -> tuple[float, str]:
        cost, now = costs[name], chosen[name]
        return (cost.at(now + STEP) - cost.at(now)) / (cost.size * STEP), name

    queue = [price(name) for name in costs]
    heapq.heapify(queue)
    while left > 0 and queue:
        _, name = heapq.heappop(queue)
        step = min(STEP, left / costs[name].size)
        chosen[name] += step
        left -= step * costs[name].size
        if chosen[name] + STEP <= costs[name].ratios[-1] + 1e-9:
            heapq.heappush(queue, price(name))
    return {name: round(value, 6) for name, value in chosen.items()}

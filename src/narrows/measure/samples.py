"""A repeated measurement, reported as median with its range: never as a single number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Samples:
    """Values of one quantity over repeats, in the unit its owner says."""

    values: tuple[float, ...]  # [repeats], at least one

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def min(self) -> float:
        return min(self.values)

    @property
    def max(self) -> float:
        return max(self.values)

    def rate(self, count: float) -> Samples:
        """`count` things per value: seconds to things per second."""
        return Samples(tuple(count / v for v in self.values))

    def over(self, other: Samples) -> Samples:
        """How many times as fast these seconds are as `other`, round by round."""
        return Samples(tuple(o / s for o, s in zip(other.values, self.values, strict=True)))

    def json(self) -> dict[str, float]:
        return {"median": self.median, "min": self.min, "max": self.max}

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.min:.4g}..{self.max:.4g})"


def in_turn(bodies: Sequence[Callable[[], object]], *, repeats: int, warmup: int = 1) -> list[Samples]:
    """Seconds of each of `repeats` calls of each body, called one after the other, so that what else a machine does
    meets all of them; `warmup` rounds before do not count.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; it must be at least 1")
    rounds: list[list[float]] = []
    for _ in range(warmup + repeats):
        seconds = []
        for body in bodies:
            start = perf_counter()
            body()
            seconds.append(perf_counter() - start)
        rounds.append(seconds)
    return [Samples(values) for values in zip(*rounds[warmup:], strict=True)]

"""What a training run is made of, without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.compressed import sha256
from ..types import ModelSpec


class TrainError(ValueError):
    """A training that cannot be done as asked; the message names the option or file, and the fix."""


@dataclass(frozen=True, slots=True)
class Texts:
    """What the model writes to be trained on: answers to the prompts of files, or to its own openers."""

    tokens: int = 100_000  # of answers
    data: tuple[Path, ...] = ()
    length: int = 384  # of an answer at most
    temperature: float = 0.7
    seed: int = 0

    def __post_init__(self) -> None:
        for path in self.data:
            if not path.expanduser().is_file():
                raise TrainError(f"--data {path} is not there; it must be a file of prompts")
        for name, low, high in (("tokens", 1000, 1 << 40), ("length", 16, 1 << 20), ("temperature", 0, 10)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise TrainError(f"--{name} is {value}; it must be between {low} and {high}")

    def record(self) -> dict[str, Any]:
        """As JSON; files by their digests."""
        files = [{"file": path.name, "sha256": sha256(path.expanduser())} for path in self.data]
        return {**asdict(self), "data": files}


@dataclass(frozen=True, slots=True)
class Course:
    """How a head is trained on them.

    Each position is unrolled `depth` tokens deep on the head's own states, as it will draft (training-time test,
    EAGLE-3, arXiv:2503.01840, section 3.2). With `loops` it is as deep as 2 to `loops` stages of `depth` tokens, drawn
    for each batch, and the loss is the mean of those of the first and of the last stage (DLoop, arXiv:2610.07659).
    """

    epochs: int = 2
    depth: int = 3
    loops: int = 1
    vocab: int = 4096  # tokens the head may draft
    rate: float = 5e-4  # of learning, at its highest
    batch: int = 768  # tokens
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {"epochs": (1, 1000), "depth": (1, 8), "loops": (1, 4), "vocab": (16, 1 << 20), "rate": (1e-7, 1.0)}
        for name, (low, high) in {**limits, "batch": (64, 1 << 20)}.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise TrainError(f"--{name} is {value}; it must be between {low} and {high}")


def target_layers(spec: ModelSpec) -> tuple[int, int, int]:
    """A low, a middle and a high layer; the states before them are what a head reads."""
    n = spec.num_layers
    return min(2, n - 1), n // 2, max(n - 3, 0)

"""What a training run is made of, without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..checkpoints.compressed import sha256
from ..types import ModelSpec

FFN_STEP = 64  # columns that share a scale


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

    After a beginning with the first token alone each position is unrolled `depth` tokens deep on the head's own states,
    as it will draft (training-time test, EAGLE-3, arXiv:2503.01840, section 3.2). With `loops` it is as deep as 2 to
    `loops` stages of `depth` tokens, drawn for each batch, and the loss is the mean of those of the first and of the
    last stage (DLoop, arXiv:2610.07659).
    """

    epochs: int = 4
    depth: int = 3
    loops: int = 1
    vocab: int = 4096  # tokens the head may draft
    rate: float = 1e-3  # of learning, at its highest
    batch: int = 400  # tokens
    ffn: int = 0  # width of the head's feed-forward part; 0: that of the target
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {"epochs": (1, 1000), "depth": (1, 8), "loops": (1, 4), "vocab": (16, 1 << 20), "rate": (1e-7, 1.0)}
        for name, (low, high) in {**limits, "batch": (64, 1 << 20)}.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise TrainError(f"--{name} is {value}; it must be between {low} and {high}")
        if self.ffn < 0 or self.ffn % FFN_STEP:
            raise TrainError(f"--ffn is {self.ffn}; it must be a multiple of {FFN_STEP}, or 0 for the model's")

    def head_spec(self, spec: ModelSpec) -> ModelSpec:
        """The model's shape with the head's own width. Raises TrainError when that is more than the model's."""
        if self.ffn > spec.ffn_size:
            raise TrainError(f"--ffn is {self.ffn}; it must be at most {spec.ffn_size}, the model's")
        return replace(spec, ffn_size=self.ffn or spec.ffn_size)


def target_layers(spec: ModelSpec) -> tuple[int, int, int]:
    """A low, a middle and a high layer; the states before them are what a head reads."""
    n = spec.num_layers
    return min(2, n - 1), n // 2, max(n - 3, 0)

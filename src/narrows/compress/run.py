"""Compressing a model: calibrate, share out what is pruned, solve layer by layer, write. What is done is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from ..checkpoints import Checkpoint, open_checkpoint
from ..checkpoints.compressed import sha256
from ..machine import cache_dir
from ..methods import show
from ..models import declare
from ..types import F32, TensorSource
from ..weights.load import read_matrix
from . import SOLVERS
from .allocate import Cost, allocate, measure
from .artifact import publish, tensors_of, write, write_tensors
from .base import CompressError, Solved, Solver, relative_loss
from .grid import Grid
from .hessians import MATRICES, Hessian, Input, Kept, collect, input_of, passes
from .pattern import Pattern
from .sequences import Calibration, Sequence, kept_samples, sequences

if TYPE_CHECKING:
    from narrows import LLM

MOST_ROWS = 16384  # solved at once: only a head has more

Advance = Callable[[int], None]
Track = Callable[[str, int], Any]  # (what is done, how much of it) -> a context that gives an Advance


@contextmanager
def untracked(label: str, total: int) -> Iterator[Advance]:
    """Progress that nobody watches."""
    yield lambda done: None


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that an artifact depends on, besides the model."""

    calibration: Calibration
    solver: Solver
    pattern: Pattern
    grid: Grid
    by_loss: bool = False  # matrices are pruned as far as their losses say, instead of all alike
    head: bool = False

    def record(self) -> dict[str, Any]:
        """As JSON; files by their digests."""
        c = self.calibration
        calibration = {k: v for k, v in asdict(c).items() if k not in ("prompts", "text", "part")}
        for kind, path in (("prompts", c.prompts), ("text", c.text)):
            if path is not None:
                calibration[kind] = {"file": path.name, "sha256": sha256(path.expanduser())}
        return {
            "method": show(self.solver, SOLVERS),
            "pattern": str(self.pattern),
            "ratio": self.pattern.ratio,
            "bits": self.grid.bits,
            "group": self.grid.group,
            "allocate": "loss" if self.by_loss else "uniform",
            "include": ["head"] if self.head else [],
            "calibration": calibration,
        }


class Compression:
    """One model on its way to a folder. Raises CompressError before any work when the recipe does not fit the model.

    What matrices meet is kept in the folder `inputs`, if one is given, for other recipes of the same calibration.
    """

    def __init__(
        self,
        llm: LLM,
        name: str,
        out: Path,
        recipe: Recipe,
        memory: int,
        track: Track = untracked,
        inputs: Path | None = None,
    ) -> None:
        if recipe.by_loss and (recipe.pattern.span or not recipe.pattern.ratio):
            raise CompressError(
                f"--allocate loss needs --pattern unstructured: {recipe.pattern} has the same share anywhere"
            )
        if out.exists():
            raise CompressError(f"{out} exists already: remove it, or choose another --out")
        self.llm, self.recipe, self.out, self.memory, self.track = llm, recipe, out, memory, track
        self.ckpt: Checkpoint = open_checkpoint(llm.loaded.path)
        self.spec, self.sources = declare(self.ckpt)
        layers = range(self.spec.num_layers)
        self.names = [f"layers.{i}.{part}" for i in layers for part in MATRICES] + ["head"] * recipe.head
        for matrix in self.names:
            recipe.pattern.check(self.source(matrix).name, self.source(matrix).shape[1])
        path = llm.loaded.path
        self.parent = {"name": name, "file": path.name, "path": str(path.resolve()), "sha256": sha256(path)}
        self.work = out.with_name(out.name + ".partial")
        self._claim({"parent": self.parent["sha256"], "narrows": version("narrows"), **recipe.record()})
        self.inputs = inputs and inputs / self._key(self.recipe.record()["calibration"])

    def source(self, name: str) -> TensorSource:
        return self.sources.get(name) or self.sources["embed"]  # a tied head

    def run(self) -> dict[str, Any]:
        """Does what is left to do; returns what the artifact says of itself."""
        plan = self.recipe.calibration
        store = self.work / "sequences.jsonl"
        with self.track(f"calibrating: {plan.source}", plan.tokens) as advance, kept_samples(store, self._samples()):
            chosen = sequences(self.llm, plan, store, advance)
        ratios = self._ratios(chosen)
        for layer, sums in self._layers(chosen, "solving", lambda layer: self._record(layer).exists()):
            tensors, records = {}, {}
            for name, weights, hessian, prepared in self._matrices(layer, sums):
                solved = self._solve(weights, prepared, self.recipe.pattern.at(ratios[name]))
                loss = relative_loss(weights, solved.weights(self.recipe.grid), hessian)
                pruned = round(1 - float(solved.mask.mean()), 6)
                records[name] = {"shape": list(weights.shape), "ratio": pruned, "loss": float(f"{loss:.6g}")}
                tensors |= tensors_of(name, solved, self.recipe.grid)
            write_tensors(self._record(layer).with_suffix(".safetensors"), tensors)
            write(self._record(layer), [json.dumps(records).encode()])
        layers = self._all_layers()
        matrices = {k: v for layer in layers for k, v in json.loads(self._record(layer).read_text()).items()}
        info = {
            "parent": self.parent,
            **self.recipe.record(),
            "loss": float(np.mean([m["loss"] for m in matrices.values()])),
            "narrows": version("narrows"),
            "matrices": matrices,
        }
        publish(self.work, (self._record(layer).with_suffix(".safetensors") for layer in layers), info, self.out)
        return info

    def _claim(self, settings: dict[str, Any]) -> None:
        """The folder of the work, if it is this command's."""
        mark = self.work / "settings.json"
        try:
            self.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CompressError(f"cannot write {self.work}: {error.strerror}; choose another --out") from error
        known = json.loads(mark.read_text()) if mark.exists() else settings
        if known != json.loads(json.dumps(settings)):
            changed = [k for k in settings if known.get(k) != json.loads(json.dumps(settings[k]))]
            raise CompressError(
                f"{self.work} holds the work of a command with another {', '.join(changed)}: remove it, or choose "
                "another --out"
            )
        write(mark, [json.dumps(settings).encode()])

    def _samples(self) -> Path:
        """Where what the model writes is kept for other recipes: samples do not depend on how many there are."""
        settings = self.recipe.record()["calibration"]
        what = {k: v for k, v in settings.items() if k not in ("source", "tokens", "text")}
        return cache_dir() / "samples" / f"{self._key(what)}.jsonl"

    def _key(self, settings: dict[str, Any]) -> str:
        key = json.dumps([self.parent["sha256"], version("narrows"), settings])
        return xxhash.xxh3_128_hexdigest(key.encode())

    def _all_layers(self) -> list[int]:
        return [*range(self.spec.num_layers), *([self.spec.num_layers] if self.recipe.head else [])]

    def _record(self, layer: int) -> Path:
        return self.work / f"layer-{layer:04d}.json"

    def _layers(
        self, chosen: list[Sequence], label: str, done: Callable[[int], bool]
    ) -> Iterator[tuple[int, dict[Input, Hessian | Kept]]]:
        """Layers that are not done, in order, and the sums of their inputs."""
        left = [layer for layer in self._all_layers() if not done(layer)]
        groups = passes(self.spec, left, self.memory)
        for i, group in enumerate(groups, 1):
            wanted = sorted(
                {input_of(n, self.spec.num_layers) for n in self.names} & {(g, w) for g in group for w in range(5)}
            )
            part = f", part {i} of {len(groups)}" if len(groups) > 1 else ""
            sums: dict[Input, Hessian | Kept] = {key: k for key in wanted if (k := self._kept(key)) and k.path.exists()}
            if len(sums) < len(wanted):
                with self.track(f"reading inputs{part}", sum(s.num_rows for s in chosen)) as advance:
                    sums = {**collect(self.llm, chosen, wanted, advance)}
            with self.track(f"{label}{part}", len(group)) as advance:
                for layer in group:
                    yield layer, {key: sums.pop(key) for key in wanted if key[0] == layer}
                    advance(1)

    def _kept(self, key: Input) -> Kept | None:
        """Where the Hessian of an input is kept, or is to be."""
        return self.inputs and Kept(self.inputs / f"{key[0]}-{key[1]}.npy")

    def _matrices(self, layer: int, sums: dict[Input, Hessian | Kept]) -> Iterator[tuple[str, F32, F32, Any]]:
        """(name, weights, Hessian, what the solver made of it) of a layer's matrices."""
        for key in list(sums):
            hessian = sums.pop(key).finish()
            if (kept := self._kept(key)) and not kept.path.exists():
                kept.keep(hessian)
            prepared = self.recipe.solver.prepare(hessian)
            for name in self.names:
                if input_of(name, self.spec.num_layers) == key:
                    weights = read_matrix(self.ckpt, self.source(name), self.llm.num_threads)
                    yield name, weights, hessian, prepared

    def _ratios(self, chosen: list[Sequence]) -> dict[str, float]:
        pattern = self.recipe.pattern
        if not self.recipe.by_loss:
            return dict.fromkeys(self.names, pattern.ratio)
        kept = self.work / "ratios.json"
        if kept.exists():
            return json.loads(kept.read_text())
        costs: dict[str, Cost] = {}
        for layer, sums in self._layers(chosen, "measuring losses", lambda layer: False):
            for name, weights, hessian, prepared in self._matrices(layer, sums):
                costs[name] = measure(self.recipe.solver, weights, prepared, hessian, pattern.ratio)
        ratios = allocate(costs, pattern.ratio)
        write(kept, [json.dumps(ratios).encode()])
        return ratios

    def _solve(self, weights: F32, prepared: Any, pattern: Pattern) -> Solved:
        solver, grid = self.recipe.solver, self.recipe.grid
        parts = [
            solver.solve(np.ascontiguousarray(weights[i : i + MOST_ROWS]), prepared, pattern, grid)
            for i in range(0, len(weights), MOST_ROWS)
        ]
        if len(parts) == 1:
            return parts[0]
        return Solved(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("mask", "codes", "scales")))

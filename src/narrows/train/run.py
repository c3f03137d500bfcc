"""A head's training from a model's name to a folder: the text, where weights begin, what becomes of them."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import _native
from ..checkpoints import Checkpoint
from ..checkpoints.base import read_object
from ..checkpoints.compressed import WEIGHTS, sha256
from ..checkpoints.head import FUSE, SCALE, open_head, parent_of, shapes
from ..compress.artifact import write
from ..models import declare
from ..types import F32, I32, ModelSpec, TensorSource
from ..weights.load import read_matrix, to_floats
from .artifact import GRID, write_head
from .base import Course, Texts, TrainError, target_layers
from .features import Features, Track, collect
from .loop import Lesson, train
from .network import Head

if TYPE_CHECKING:
    from narrows import LLM

CURVES = "training.json"
SAMPLE = 8192  # rows by which the usual size of states is judged


class Training:
    """One head on its way to a folder. Raises TrainError before any work when that cannot be."""

    def __init__(
        self,
        llm: LLM,
        name: str,
        ckpt: Checkpoint,
        out: Path,
        texts: Texts,
        course: Course,
        begin: Path | None,
        track: Track,
    ) -> None:
        self.llm, self.name, self.ckpt, self.out, self.texts, self.course = llm, name, ckpt, out, texts, course
        self.track, self.spec = track, course.head_spec(llm.loaded.spec)
        _, self.sources = declare(ckpt)
        self.parent = {"name": name, "file": llm.loaded.path.name, "sha256": sha256(llm.loaded.path)}
        self.layers = target_layers(self.spec)
        self.begin = None if begin is None else open_head(begin, self.spec)
        if begin is not None and parent_of(begin)["sha256"] != self.parent["sha256"]:
            raise TrainError(
                f"--from {begin} was not trained for {self.parent['file']}: train from a head of this model"
            )
        if self.begin is not None:
            self.layers, wanted = self.begin.layers, self.spec.ffn_size
            self.spec = self.begin.spec
            if course.ffn and wanted != self.spec.ffn_size:
                raise TrainError(f"--ffn is {course.ffn}, but that of the head to go on from is {self.spec.ffn_size}")
        if out.exists():
            raise TrainError(f"{out} exists already: remove it, or choose another --out")
        self.work = out.with_name(out.name + ".partial")
        begun = None if begin is None else sha256(begin / WEIGHTS)
        self.settings = {"texts": texts.record(), "course": asdict(course), "from": begun, "parent": self.parent}

    def run(self) -> dict[str, Any]:
        """Does what is left to do; returns what the head says of itself."""
        self._claim()
        features = collect(self.llm, self.parent["sha256"], self.texts, self.layers, self.out.parent, self.track)
        ids = self._vocabulary(features)
        torch.manual_seed(self.course.seed)
        head = Head(self.spec, self._first_weights(features))
        rows = np.stack([self._row("head", i) for i in ids.tolist()])
        lesson = Lesson(features, self.embeds, ids, torch.tensor(rows), torch.tensor(self._read("norm")))
        history = train(head, lesson, self.course, self.work / "checkpoint.pt", self.track)
        info = {
            "parent": self.parent,
            "layers": list(self.layers),
            "texts": self.texts.record(),
            "course": asdict(self.course),
            "from": None if self.begin is None else self.begin.path.name,
            "narrows": version("narrows"),
            "torch": torch.__version__,
            **history["result"],
        }
        write_head(self.out, head.arrays(), ids.tolist(), self.spec.vocab_size, info)
        write(self.out / CURVES, [json.dumps(history, allow_nan=False).encode() + b"\n"])
        shutil.rmtree(self.work)
        return info

    def _claim(self) -> None:
        """The folder of the work, if it is this command's."""
        mark = self.work / "settings.json"
        self.work.mkdir(parents=True, exist_ok=True)
        wanted = json.loads(json.dumps(self.settings))
        known = read_object(mark) if mark.exists() else wanted
        if known != wanted:
            changed = ", ".join(k for k in wanted if known.get(k) != wanted[k])
            raise TrainError(f"{self.work} holds a training with other {changed}: remove it, or choose another --out")
        write(mark, [json.dumps(wanted).encode()])

    def _vocabulary(self, features: Features) -> I32:
        """The commonest tokens of the answers, in order; where they are fewer, the first of the vocabulary as well."""
        if self.begin is not None:
            return self.begin.ids
        counts = np.zeros(self.spec.vocab_size, np.int64)
        for text in features.texts:
            np.add.at(counts, text.tokens[text.first :], 1)
        counts[list(self.llm.tokenizer.eos_ids)] += 1  # an answer's end is not among what is read
        order = np.argsort(-counts, kind="stable")
        return np.sort(order[: self.course.vocab]).astype(np.int32)

    def _row(self, name: str, token: int) -> F32:
        tensors = self.llm.loaded.model.tensors
        return _native.unpack_row(tensors.get(name, tensors["embed"]), token)

    def embeds(self, tokens: list[int]) -> F32:
        """[n, H]"""
        return np.stack([self._row("embed", t) for t in tokens])

    def _read(self, name: str) -> F32:
        source: TensorSource = self.sources[name]
        if len(source.shape) == 2:
            return read_matrix(self.ckpt, source, self.llm.num_threads)
        return to_floats(self.ckpt.raw(source.name), self.ckpt.tensors[source.name].dtype) + np.float32(source.add)

    def _first_weights(self, features: Features) -> dict[str, F32]:
        """Those of the head to go on from, or of the target: its last layer, with what its first reads beside it, on
        the high states as they are.
        """
        if self.begin is not None:
            return _weights(self.begin.path, self.spec)
        last, hidden = f"layers.{self.spec.num_layers - 1}.", self.spec.hidden_size
        weights = {"norm": self._read("norm"), "embed_norm": self._read("layers.0.attn_norm")}
        for part in ("attn_norm", "ffn_norm", "o", "gate", "up", "down"):
            weights[f"layers.0.{part}"] = self._read(last + part)
        for part in "qkv":
            both = [self._read(f"layers.0.{part}"), self._read(last + part)]
            weights[f"layers.0.{part}"] = np.concatenate(both, axis=1)
        gate, up, down = (weights[f"layers.0.{part}"] for part in ("gate", "up", "down"))
        weight = np.linalg.norm(gate, axis=1) * np.linalg.norm(up, axis=1) * np.linalg.norm(down, axis=0)
        most = np.sort(np.argsort(-weight, kind="stable")[: self.spec.ffn_size])  # where it is narrower
        weights |= {"layers.0.gate": gate[most], "layers.0.up": up[most], "layers.0.down": down[:, most]}
        fuse = np.zeros(shapes(self.spec)[FUSE], np.float32)
        some = features.states[:: max(1, len(features.states) // SAMPLE), : fuse.shape[1]].astype(np.float32)
        usual = np.median(np.abs(some), axis=0) + 1e-3
        weights[SCALE] = (1 / usual).astype(np.float16).astype(np.float32)
        fuse[:, -hidden:] = np.diag(usual[-hidden:])
        weights[FUSE] = fuse
        return weights


def _weights(path: Path, spec: ModelSpec) -> dict[str, F32]:
    """A trained head's, as float32."""
    head = open_head(path, spec)
    found: dict[str, F32] = {**head.norms, SCALE: head.scale}
    for name, (_, cols) in head.matrices.shapes.items():
        _, codes, scales = head.matrices.matrix(name)
        found[name] = GRID.decode(codes, np.repeat(scales.astype(np.float32), GRID.group, axis=1)[:, :cols])
    return found

"""What drafters read with: smaller models, the target itself in part or in fewer bits, and heads trained for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import _native
from .checkpoints.head import FUSE, TrainedHead, find_head, open_head
from .drafters.base import Source
from .files import ModelFiles
from .heads import Fusion, HeadReader
from .kv.pool import KvPool
from .methods import StackError
from .models import hub
from .native import PAGE_SIZE, NativeModel
from .reader import DraftReader
from .text import Tokenizer, load_tokenizer
from .types import I32, ModelSpec
from .weights import Format, Packed
from .weights.compressed import load_compressed

SHIPPED_HEADS = Path(__file__).parent / "trained"


@dataclass(frozen=True, slots=True)
class ModelDraft:
    """A model of its own, or some `layers` of the target, perhaps in another format.

    Opened before there is room for it: `spec` says what it remembers of a token.
    """

    source: Source
    files: ModelFiles
    spec: ModelSpec
    layers: Sequence[int] | None = None  # of the target

    def reader(self, target: NativeModel, codec: str, cache: bool) -> DraftReader:
        """Loads it, with as many pages as the target has."""
        threads, weights = target.num_threads, self.source.weights
        shared = self.layers is not None and weights == "auto"
        tensors = target.tensors if shared else self.files.tensors(weights, cache, threads)
        if self.layers is not None:
            tensors = _layers_of(tensors, self.layers)
        native = NativeModel(self.spec, tensors, target.num_pages, threads)
        identity = f"{self.files.identity} {self.source}"
        return DraftReader(
            str(self.source), native, KvPool(target.num_pages, PAGE_SIZE, identity=identity, codec=codec)
        )


@dataclass(frozen=True, slots=True)
class HeadDraft:
    """A head, whose target lends it embeddings and rows of the output matrix."""

    source: Source
    files: ModelFiles
    spec: ModelSpec
    head: TrainedHead

    @classmethod
    def open(cls, source: Source, target: ModelFiles) -> HeadDraft:
        places = (hub.models_dir(), SHIPPED_HEADS)
        head = open_head(find_head(source.name, (target.path, target.ckpt.path), places), target.spec)
        return cls(source, target, _only(head.spec, [head.spec.num_layers - 1]), head)

    def reader(self, target: NativeModel, codec: str, cache: bool) -> DraftReader:
        """Loads it, with as many pages as the target has."""
        head, tensors = self.head, target.tensors
        matrices: dict[str, Any] = dict(
            load_compressed(head.matrices, "dense", cache=cache, num_threads=target.num_threads)
        )
        fuse = matrices.pop(FUSE)
        output = _rows(tensors.get("head", tensors["embed"]), head.ids)
        parts = {**matrices, **head.norms, "embed": tensors["embed"], "head": output}
        native = NativeModel(self.spec, parts, target.num_pages, target.num_threads, hidden_of=(1,))
        identity = f"{self.files.identity} {head.matrices.identity()}"
        pool = KvPool(target.num_pages, PAGE_SIZE, identity=identity, codec=codec)
        fusion = Fusion(lambda hidden: _native.matmul(fuse, hidden * head.scale), fuse.cols, fuse.rows, fuse.data.size)
        return HeadReader(str(self.source), native, pool, fusion, head.ids)


Draft = ModelDraft | HeadDraft


def open_drafts(sources: Sequence[Source], target: ModelFiles, tokenizer: Tokenizer, progress: bool) -> list[Draft]:
    """In order. Raises StackError for one that does not go with the target."""
    opened: list[Draft] = []
    for source in sources:
        if source.kind == "head":
            opened.append(HeadDraft.open(source, target))
        elif source.kind == "self":
            layers = _kept(target.spec.num_layers, source.skip)
            opened.append(ModelDraft(source, target, _only(target.spec, layers), layers))
        else:
            files = ModelFiles.open(source.name, progress)
            _check_vocabulary(source.name, files, target, tokenizer)
            opened.append(ModelDraft(source, files, files.spec))
    if len(heads := [draft.source.name for draft in opened if isinstance(draft, HeadDraft)]) > 1:
        raise StackError(f"a stack has one head, not {len(heads)}: {', '.join(heads)}")
    return opened


def hidden_of(drafts: Sequence[Draft]) -> tuple[int, ...]:
    """The layers before which the target's states are wanted."""
    return next((draft.head.layers for draft in drafts if isinstance(draft, HeadDraft)), ())


def _check_vocabulary(name: str, files: ModelFiles, target: ModelFiles, tokenizer: Tokenizer) -> None:
    size, wanted = files.spec.vocab_size, target.spec.vocab_size
    difference = tokenizer.first_difference(load_tokenizer(files.ckpt))
    if size != wanted or difference is not None:
        how = f"token {difference} differs" if size == wanted else "they differ in size"
        raise StackError(
            f"draft model {name} has another vocabulary than the model ({how}: {size} and {wanted} tokens): take a "
            "draft model of the same family"
        )


def _kept(num_layers: int, skip: tuple[int, ...]) -> list[int]:
    """The layers that are left. Raises StackError when some to skip are not there, or none is left."""
    if skip and max(skip) >= num_layers:
        raise StackError(
            f"draft=self: there is no layer {max(skip)} to skip; the model has layers 0 to {num_layers - 1}"
        )
    kept = [i for i in range(num_layers) if i not in skip]
    if not kept:
        raise StackError("draft=self: all layers are skipped; leave some")
    return kept


def _only(spec: ModelSpec, layers: Sequence[int]) -> ModelSpec:
    """The model with these of its layers."""
    ropes, windows = (tuple(values[i] for i in layers) for values in (spec.layer_rope, spec.layer_window))
    return replace(spec, num_layers=len(layers), layer_rope=ropes, layer_window=windows)


def _layers_of(tensors: Mapping[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    """The tensors of these layers, numbered anew, and those of no layer."""
    places = {f"layers.{layer}": f"layers.{i}" for i, layer in enumerate(layers)}
    found = {}
    for name, tensor in tensors.items():
        layer, dot, part = name.rpartition(".")
        if not dot:
            found[name] = tensor
        elif layer in places:
            found[f"{places[layer]}.{part}"] = tensor
    return found


def _rows(matrix: Packed, ids: I32) -> Packed:
    """Rows of a packed matrix, in int8."""
    values = np.stack([_native.unpack_row(matrix, i) for i in ids.tolist()])
    (rows, cols), fmt = values.shape, Format(8, 32)
    some = Packed(fmt, rows, cols, _native.alloc_huge(fmt.packed_bytes(rows, cols)))
    _native.pack_float(fmt, values, some.data)
    return some

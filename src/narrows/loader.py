"""From the name of a model to an engine that runs it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import _native
from .checkpoints import Checkpoint, open_checkpoint
from .checkpoints.compressed import Compressed, open_compressed
from .checkpoints.head import FUSE, TrainedHead, find_head, open_head
from .constrain.guidance import Guidance
from .drafters.base import HEAD
from .engine import Engine
from .heads import Fusion, HeadReader
from .kv.pool import KvPool
from .machine import available_memory, default_threads
from .methods import StackError
from .models import declare, hub
from .prefill import DensePrefill
from .reader import Model, Reader
from .speculation import Speculation
from .stack import Stack
from .text import ChatTemplate, Tokenizer, load_chat_template, load_tokenizer
from .types import F32, I32, ForwardBatch, ForwardOutput, ModelSpec, TensorSource
from .weights import Format, Packed, WeightError, load_weights
from .weights.compressed import load_compressed

log = logging.getLogger("narrows")

PAGE_SIZE: int = _native.PAGE_SIZE
MAX_KV_BYTES = 2 << 30  # unless asked for
SHIPPED_HEADS = Path(__file__).parent / "trained"


class NativeModel:
    """A model in the native core: weights, KV pages and threads."""

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, Any],
        num_pages: int,
        num_threads: int,
        kv_of: NativeModel | None = None,  # whose pages it reads and writes, instead of its own
        hidden_of: tuple[int, ...] = (),  # layers: the streams before them, joined, are a step's `hidden`
    ) -> None:
        values = {f.name: getattr(spec, f.name) for f in fields(spec)}
        other = kv_of._native if kv_of else None
        self._native = _native.Model(values, dict(tensors), PAGE_SIZE, num_pages, num_threads, kv_of=other)
        self.spec = spec
        self.tensors = tensors  # packed, by canonical name
        self.num_pages = num_pages
        self.num_threads = num_threads
        self.hidden_of = hidden_of

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that a token of context adds to what later tokens read."""
        return self._native.kv_bytes_per_token

    def forward(self, batch: ForwardBatch, features: F32 | None = None) -> ForwardOutput:
        """One step; only a head reads features [T, H].

        Raises ValueError for a batch whose indices do not fit the model, before anything is computed.
        """
        native, began, hidden, final = self._native, time.perf_counter(), None, None
        weight_bytes, kv_bytes = native.weight_bytes, native.kv_bytes
        if self.hidden_of or batch.final_rows is not None:
            logits, hidden, final = native.states(
                *_arrays(batch), batch.parents, self.hidden_of, batch.final_rows, features
            )
        else:
            logits = native.forward(*_arrays(batch), batch.parents)
        seconds = time.perf_counter() - began
        weight_bytes, kv_bytes = native.weight_bytes - weight_bytes, native.kv_bytes - kv_bytes
        return ForwardOutput(logits, weight_bytes, kv_bytes, seconds, hidden if self.hidden_of else None, final)

    def inputs(self, batch: ForwardBatch, wanted: Sequence[tuple[int, int]]) -> list[F32]:
        """One step that gives, instead of logits, the inputs [R, width] of matrix products at the rows of logits.

        `wanted` are pairs of a layer and 0 q/k/v, 1 o, 2 gate/up or 3 down; the head is 4 of the layer after the last.
        """
        pairs = np.asarray(wanted, np.int32).reshape(-1, 2)
        return self._native.inputs(*_arrays(batch), pairs)


def _arrays(batch: ForwardBatch) -> tuple[I32, I32, I32, I32, I32, I32]:
    """What every kind of step reads, in the native core's order."""
    b = batch
    return b.tokens, b.positions, b.cu_seqlens, b.context_lens, b.page_table, b.logit_rows


@dataclass(frozen=True, slots=True)
class _Files:
    """A model on disk; a compressed one has matrices of its own, and the rest from its parent."""

    path: Path
    ckpt: Checkpoint
    compressed: Compressed | None
    spec: ModelSpec
    sources: Mapping[str, TensorSource]

    @classmethod
    def open(cls, model: str | os.PathLike[str], progress: bool) -> _Files:
        path = hub.resolve(model, progress=progress)
        parent = hub.parent(path)
        ckpt = open_checkpoint(parent)
        return cls(path, ckpt, open_compressed(path) if parent != path else None, *declare(ckpt))

    @property
    def identity(self) -> str:
        """Of everything that is computed with."""
        return f"{self.ckpt.identity()} {self.compressed.identity() if self.compressed else ''}"

    def dense(self, weights: str, cache: bool, num_threads: int) -> Mapping[str, Any]:
        """The tensors of the unmodified model, packed; `weights` is a format, or "auto"."""
        return load_weights(self.ckpt, self.spec, self.sources, weights=weights, cache=cache, num_threads=num_threads)

    def tensors(
        self, weights: str, cache: bool, num_threads: int, dense: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """Packed; `weights` is a format, or a way to read the model's own; `dense`, if loaded, its unmodified ones."""
        ckpt, spec, compressed, sources = self.ckpt, self.spec, self.compressed, self.sources
        if compressed is None:
            return self.dense(weights, cache, num_threads)
        for name, shape in compressed.shapes.items():
            source = sources.get("embed" if name == "head" and spec.tied_head else name)
            if source is None or source.shape != shape:
                raise WeightError(f"{compressed.path}: matrix {name!r} of {shape} has no place in {ckpt.path}")
        if dense is None:
            rest = {name: source for name, source in sources.items() if name not in compressed.shapes}
            dense = load_weights(ckpt, spec, rest, cache=False, num_threads=num_threads)
        return {**dense, **load_compressed(compressed, weights, cache=cache, num_threads=num_threads)}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run, and what it was made of."""

    engine: Engine
    model: NativeModel
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    spec: ModelSpec
    stack: Stack
    path: Path


def load(
    model: str | os.PathLike[str],
    stack: Stack | str | None = None,
    *,
    weights: str | None = None,
    num_threads: int | None = None,
    max_model_len: int | None = None,
    kv_cache_bytes: int | None = None,
    cache: bool = True,
    progress: bool = True,
) -> Loaded:
    """Finds, reads and packs a model, and builds its engine.

    Args:
        model: a path, a short name or a repository, as `narrows.models.hub.resolve` takes it.
        stack: the parts to use, as a Stack or its line.
        weights: a weight format, instead of the stack's.
        num_threads: default: what the process may use of the machine's physical cores.
        max_model_len: longest sequence, in tokens; default: what the model was trained for, if the KV cache holds it.
        kv_cache_bytes: size of the KV cache; default: up to 2 GiB, a quarter of free memory. Touched as it is used.
        cache: whether packed weights are kept on disk for the next start.
        progress: whether downloads and packing show bars.

    Raises ValueError (of the part that found the fault) with a message that names it.
    """
    stack = Stack.parse(stack) if isinstance(stack, str) else stack or Stack()
    if weights is not None:
        stack = replace(stack, weights=weights)
    stack.check()
    for name, value in (
        ("num_threads", num_threads),
        ("max_model_len", max_model_len),
        ("kv_cache_bytes", kv_cache_bytes),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")

    files = _Files.open(model, progress)
    spec, tokenizer = files.spec, load_tokenizer(files.ckpt)
    if num_threads is None:
        num_threads, why = default_threads()
        log.info("using %d threads: %s", num_threads, why)
    drafters = stack.draft.models if stack.draft else ()
    heads = {name: _open_head(name, files) for name in drafters if name.startswith(HEAD)}
    if len(heads) > 1:
        raise StackError(f"a stack has one head, not {len(heads)}: {', '.join(heads)}")
    num_layers = spec.num_layers + len(heads)  # a head remembers as much as a layer
    per_token = num_layers * stack.kv.bytes_per_token(spec.num_kv_heads, spec.head_dim)
    num_pages, max_model_len = _size_kv(spec, per_token * PAGE_SIZE, stack, max_model_len, kv_cache_bytes)
    dense = files.dense("auto", cache, num_threads) if stack.prefill == "dense" else None
    layers = next((head.layers for head in heads.values()), ())
    tensors = files.tensors(stack.weights, cache, num_threads, dense)
    native = NativeModel(spec, tensors, num_pages, num_threads, hidden_of=layers)
    target: Model = native
    if dense is not None:
        prompts = NativeModel(spec, dense, num_pages, num_threads, kv_of=native, hidden_of=layers)
        target = DensePrefill(prompts, native)
    speculation = None
    if stack.draft is not None:
        readers = {
            name: _head_reader(name, heads[name], native, files, stack, cache)
            if name in heads
            else _draft_reader(name, tokenizer, spec, stack, num_pages, num_threads, cache=cache, progress=progress)
            for name in drafters
        }
        speculation = Speculation(stack.draft, stack.pace, readers)
    identity = f"{files.identity} weights={stack.weights} prefill={stack.prefill}"
    apart = dense is not None
    engine = Engine(
        target,
        KvPool(num_pages, PAGE_SIZE, identity=identity, codec=stack.kv.tag, output_apart=apart),
        stack.scheduler,
        stack.verify,
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        eos_ids=tokenizer.eos_ids,
        bos_id=tokenizer.bos_id,
        speculation=speculation,
        grammars=Guidance(tokenizer, spec.vocab_size),
    )
    return Loaded(engine, native, tokenizer, load_chat_template(files.ckpt, tokenizer), spec, stack, files.path)


def _draft_reader(
    name: str,
    tokenizer: Tokenizer,
    target: ModelSpec,
    stack: Stack,
    num_pages: int,
    num_threads: int,
    *,
    cache: bool,
    progress: bool,
) -> Reader:
    """A draft model with as many pages as the target has. Raises StackError unless their vocabularies are the same."""
    files = _Files.open(name, progress)
    spec = files.spec
    difference = tokenizer.first_difference(load_tokenizer(files.ckpt))
    if spec.vocab_size != target.vocab_size or difference is not None:
        how = f"token {difference} differs" if spec.vocab_size == target.vocab_size else "they differ in size"
        raise StackError(
            f"draft model {name} has another vocabulary than the model ({how}: {spec.vocab_size} and "
            f"{target.vocab_size} tokens): take a draft model of the same family"
        )
    native = NativeModel(spec, files.tensors("auto", cache, num_threads), num_pages, num_threads)
    return Reader(name, native, KvPool(num_pages, PAGE_SIZE, identity=files.identity, codec=stack.kv.tag))


def _open_head(name: str, files: _Files) -> TrainedHead:
    places = (hub.models_dir(), SHIPPED_HEADS)
    return open_head(find_head(name.removeprefix(HEAD), (files.path, files.ckpt.path), places), files.spec)


def _head_reader(
    name: str, head: TrainedHead, target: NativeModel, files: _Files, stack: Stack, cache: bool
) -> HeadReader:
    """A head with as many pages as its target, whose embeddings and rows of the output matrix it uses."""
    tensors = target.tensors
    matrices: dict[str, Any] = dict(
        load_compressed(head.matrices, "dense", cache=cache, num_threads=target.num_threads)
    )
    fuse = matrices.pop(FUSE)
    output = _rows(tensors.get("head", tensors["embed"]), head.ids)
    spec = replace(
        files.spec, num_layers=1, layer_rope=files.spec.layer_rope[-1:], layer_window=files.spec.layer_window[-1:]
    )
    parts = {**matrices, **head.vectors, "embed": tensors["embed"], "head": output}
    native = NativeModel(spec, parts, target.num_pages, target.num_threads, hidden_of=(1,))
    identity = f"{files.identity} {head.matrices.identity()}"
    pool = KvPool(target.num_pages, PAGE_SIZE, identity=identity, codec=stack.kv.tag)
    fusion = Fusion(lambda hidden: _native.matmul(fuse, hidden), fuse.cols, fuse.rows, fuse.data.size)
    return HeadReader(name, native, pool, fusion, head.ids)


def _rows(matrix: Packed, ids: I32) -> Packed:
    """Rows of a packed matrix, in int8."""
    values = np.stack([_native.unpack_row(matrix, i) for i in ids.tolist()])
    (rows, cols), fmt = values.shape, Format(8, 32)
    some = Packed(fmt, rows, cols, _native.alloc_huge(fmt.packed_bytes(rows, cols)))
    _native.pack_float(fmt, values, some.data)
    return some


def _size_kv(
    spec: ModelSpec, page_bytes: int, stack: Stack, max_model_len: int | None, kv_cache_bytes: int | None
) -> tuple[int, int]:
    """(pages, longest sequence in tokens), so that one sequence always fits."""
    wanted = max_model_len or spec.max_context
    if wanted > spec.max_context:
        log.warning("max_model_len is %d, but the model was trained for %d tokens", wanted, spec.max_context)
    pages_each = -(-wanted // PAGE_SIZE)
    if kv_cache_bytes is None:
        room = min(MAX_KV_BYTES, available_memory() // 4) // page_bytes
        max_num_seqs = getattr(stack.scheduler, "max_num_seqs", 1)
        num_pages = max(1, min(room, pages_each * max_num_seqs))
        if max_model_len is not None:  # who asks for a length gets it, if memory allows at all
            num_pages = max(num_pages, pages_each)
            if num_pages * page_bytes > available_memory():
                raise ValueError(
                    f"max_model_len is {max_model_len}, which takes {num_pages * page_bytes / 1e9:.1f} GB of KV cache; "
                    f"{available_memory() / 1e9:.1f} GB are free"
                )
    else:
        num_pages = kv_cache_bytes // page_bytes
        if num_pages < (pages_each if max_model_len else 1):
            needed = page_bytes * (pages_each if max_model_len else 1)
            raise ValueError(f"kv_cache_bytes is {kv_cache_bytes}; one sequence takes {needed}")
    if num_pages < pages_each:
        log.warning(
            "the KV cache holds %d tokens, fewer than the model's context of %d; kv_cache_bytes raises it",
            num_pages * PAGE_SIZE,
            wanted,
        )
    return num_pages, min(wanted, num_pages * PAGE_SIZE)

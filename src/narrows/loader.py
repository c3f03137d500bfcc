"""From the name of a model to an engine that runs it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

from .constrain.guidance import Guidance
from .drafts import hidden_of, open_drafts
from .engine import Engine
from .files import ModelFiles
from .kv.pool import KvPool
from .machine import available_memory, default_threads
from .native import PAGE_SIZE, NativeModel
from .prefill import DensePrefill
from .reader import Model
from .speculation import Speculation
from .stack import Stack
from .text import ChatTemplate, Tokenizer, load_chat_template, load_tokenizer
from .types import ModelSpec

log = logging.getLogger("narrows")

MAX_KV_BYTES = 2 << 30  # unless asked for


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

    files = ModelFiles.open(model, progress)
    spec, tokenizer = files.spec, load_tokenizer(files.ckpt)
    if num_threads is None:
        num_threads, why = default_threads()
        log.info("using %d threads: %s", num_threads, why)
    drafts = open_drafts(stack.draft.sources, files, tokenizer, progress) if stack.draft else []
    per_token = sum(
        part.num_layers * stack.kv.bytes_per_token(part.num_kv_heads, part.head_dim)
        for part in (spec, *(draft.spec for draft in drafts))
    )
    num_pages, max_model_len = _size_kv(spec, per_token * PAGE_SIZE, stack, max_model_len, kv_cache_bytes)
    dense = files.dense("auto", cache, num_threads) if stack.prefill == "dense" else None
    layers = hidden_of(drafts)
    tensors = files.tensors(stack.weights, cache, num_threads, dense)
    native = NativeModel(spec, tensors, num_pages, num_threads, hidden_of=layers)
    target: Model = native
    if dense is not None:
        prompts = NativeModel(spec, dense, num_pages, num_threads, kv_of=native, hidden_of=layers)
        target = DensePrefill(prompts, native)
    speculation = None
    if stack.draft is not None:
        readers = {draft.source: draft.reader(native, stack.kv.tag, cache) for draft in drafts}
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

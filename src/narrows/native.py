"""A model in the native core, as the engine and everything else step it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from . import _native
from .reader import Chain, Chained
from .types import F32, I32, ForwardBatch, ForwardOutput, ModelSpec

PAGE_SIZE: int = _native.PAGE_SIZE


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

    def draft_chain(self, chain: Chain) -> Chained:
        """Reads a token of each request, takes the likeliest to follow it, reads that, and so on.

        Raises ValueError for what does not fit the model, before anything is computed.
        """
        native = self._native
        num_bytes = native.weight_bytes + native.kv_bytes
        drafted, logprobs, lengths, states = native.draft_chain(*chain)
        return Chained(drafted, logprobs, lengths, states, native.weight_bytes + native.kv_bytes - num_bytes)

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

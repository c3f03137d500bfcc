"""How fast a model reads and writes tokens, by context length and batch size, against the bandwidth bound.

The model is driven directly with the engine's own batches; greedy choice is part of a step, text is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np

from narrows.measure.samples import Samples, in_turn
from narrows.types import F32, I32, ForwardBatch, ForwardOutput

CHUNK = 512  # tokens per forward while a context is being filled
PROMPT_SEED = 0


class Model(Protocol):
    """What is measured: the engine's model."""

    def forward(self, batch: ForwardBatch) -> ForwardOutput: ...


class Bench:
    """One model with room for `max_batch` requests of `max_context` tokens, and random tokens to read.

    Request b owns pages ``b * P : (b + 1) * P``; which tokens it reads does not change what a step costs.
    """

    def __init__(self, model: Model, *, vocab_size: int, page_size: int, max_batch: int, max_context: int) -> None:
        self.model = model
        num_pages = -(-max_context // page_size)  # P
        self.page_table: I32 = np.arange(max_batch * num_pages, dtype=np.int32).reshape(max_batch, num_pages)
        rng = np.random.default_rng(PROMPT_SEED)
        self.tokens: I32 = rng.integers(vocab_size, size=(max_batch, max_context), dtype=np.int32)  # [B, L]

    def step(self, batch: int, start: int, count: int, *, prompt: bool = False) -> ForwardOutput:
        """Requests 0..batch-1 read tokens start..start+count-1, of a prompt or not, each asking for its last logits."""
        cu_seqlens = np.arange(batch + 1, dtype=np.int32) * count
        positions = np.tile(np.arange(start, start + count, dtype=np.int32), batch)
        return self.model.forward(
            ForwardBatch(
                tokens=np.ascontiguousarray(self.tokens[:batch, start : start + count]).ravel(),
                positions=positions,
                cu_seqlens=cu_seqlens,
                context_lens=np.full(batch, start + count, np.int32),
                page_table=np.ascontiguousarray(self.page_table[:batch]),
                logit_rows=cu_seqlens[1:] - 1,
                prompt_rows=np.full(batch, count * prompt, np.int32),
            )
        )

    def fill(self, start: int, stop: int) -> None:
        """Every request reads its tokens start..stop-1, so that later steps find real KV there."""
        for request in range(len(self.page_table)):
            for begin in range(start, stop, CHUNK):
                self._fill_one(request, begin, min(CHUNK, stop - begin))

    def _fill_one(self, request: int, start: int, count: int) -> None:
        self.model.forward(
            ForwardBatch(
                tokens=self.tokens[request, start : start + count].copy(),
                positions=np.arange(start, start + count, dtype=np.int32),
                cu_seqlens=np.array([0, count], np.int32),
                context_lens=np.array([start + count], np.int32),
                page_table=self.page_table[request : request + 1].copy(),
                logit_rows=np.empty(0, np.int32),
            )
        )


def decode(
    benches: Mapping[str, Bench],
    *,
    contexts: Iterable[int],
    batches: Iterable[int],
    argmax: Callable[[F32], I32],
    steps: int = 16,
    repeats: int = 5,
) -> Iterator[dict[str, Any]]:
    """For each context length and batch size a row of each bench: `repeats` runs of `steps` greedy tokens from there.

    Rows carry tokens/s of the whole batch, seconds per step, bytes per token, and bytes/s; those of several benches,
    which take turns, the `stack`, and the `ratio` of its speed to that of the first.
    """
    filled = 0
    for context in sorted(set(contexts)):
        for bench in benches.values():
            bench.fill(filled, context)
        filled = context
        for batch in batches:

            def run(bench: Bench, read: _Bytes, batch: int = batch, context: int = context) -> None:
                for i in range(steps):
                    out = bench.step(batch, context + i, 1)
                    argmax(out.logits)
                    read.add(out)

            for row in _rows(benches, run, repeats, steps, batch):
                yield {"context": context, "batch": batch} | row


def prefill(
    benches: Mapping[str, Bench], *, tokens: Iterable[int], repeats: int = 3, chunk: int = CHUNK
) -> Iterator[dict[str, Any]]:
    """For each prompt length a row of each bench: one request reads so many tokens from an empty context, `chunk` at a
    time.
    """
    for count in tokens:

        def run(bench: Bench, read: _Bytes, count: int = count) -> None:
            for start in range(0, count, chunk):
                read.add(bench.step(1, start, min(chunk, count - start), prompt=True))

        for row in _rows(benches, run, repeats, 1, count):
            yield {"tokens": count} | row


def _rows(
    benches: Mapping[str, Bench], run: Callable[[Bench, _Bytes], None], repeats: int, steps: int, tokens_per_step: int
) -> Iterator[dict[str, Any]]:
    """The row of each bench, of runs that take turns."""
    reads = [_Bytes() for _ in benches]

    def body(bench: Bench, read: _Bytes) -> None:
        read.clear()
        run(bench, read)

    bodies = [partial(body, bench, read) for bench, read in zip(benches.values(), reads, strict=True)]
    times = in_turn(bodies, repeats=repeats)
    for name, seconds, read in zip(benches, times, reads, strict=True):
        row = _row(seconds, steps, tokens_per_step, read)
        yield {"stack": name, **row, "ratio": seconds.over(times[0]).json()} if len(times) > 1 else row


class _Bytes:
    """Bytes one run read, by class. Every run of the same shape reads the same."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.weights = self.kv = 0

    def add(self, out: ForwardOutput) -> None:
        self.weights += out.weight_bytes
        self.kv += out.kv_bytes


def _row(seconds: Samples, steps: int, tokens_per_step: int, read: _Bytes) -> dict[str, Any]:
    tokens = steps * tokens_per_step
    return {
        "tokens_per_second": seconds.rate(tokens).json(),
        "step_seconds": Samples(tuple(v / steps for v in seconds.values)).json(),
        "weight_bytes_per_token": read.weights / tokens,
        "kv_bytes_per_token": read.kv / tokens,
        "bytes_per_second": (read.weights + read.kv) / seconds.median,
    }

"""A model whose next token depends on all tokens it finds through the page table: a wrong page changes the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from narrows.engine import Engine, StepResult
from narrows.kv.pool import KvPool
from narrows.reader import Chain, Chained
from narrows.sampling import SamplingParams
from narrows.schedulers.base import Scheduler
from narrows.schedulers.continuous import Continuous
from narrows.types import F32, ForwardBatch, ForwardOutput, Request
from narrows.verifiers.base import Verifier
from narrows.verifiers.greedy import Greedy

VOCAB = 97


def logits_after(tokens: np.ndarray) -> F32:
    """[V], from a hash of the tokens."""
    return np.random.default_rng(crc32(tokens.astype(np.int32).tobytes())).standard_normal(VOCAB).astype(np.float32)


@dataclass
class FakeModel:
    num_pages: int
    page_size: int
    before: Callable[[ForwardBatch], None] | None = None  # called with every batch
    store: np.ndarray = field(init=False)  # [pages, S] tokens

    def __post_init__(self) -> None:
        self.store = np.full((self.num_pages, self.page_size), -1, np.int32)

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        if self.before:
            self.before(batch)
        size = self.page_size
        rows: dict[int, F32] = {}
        wanted = set(batch.logit_rows.tolist())
        for b, context in enumerate(batch.context_lens):
            low, high = batch.cu_seqlens[b], batch.cu_seqlens[b + 1]
            assert high > low, "a request without tokens"
            start = context - (high - low)
            pages = batch.page_table[b, : -(-context // size)]
            for t in range(low, high):
                at = start + t - low
                self.store[pages[at // size], at % size] = batch.tokens[t]
            seen = self.store[pages].ravel()
            for t in range(low, high):
                row, path = t, []
                while row >= low:  # a chain, or a path in a tree
                    path.append(start + row - low)
                    row = row - 1 if batch.parents is None else int(batch.parents[row])
                assert batch.positions[t] == start + len(path) - 1
                if t in wanted:
                    rows[t] = logits_after(np.concatenate([seen[:start], seen[path[::-1]]]))
        logits = np.stack([rows[t] for t in batch.logit_rows]) if len(batch.logit_rows) else np.empty((0, VOCAB), "f4")
        return ForwardOutput(logits, weight_bytes=1000, kv_bytes=int(batch.context_lens.sum()), seconds=1e-6)

    def draft_chain(self, chain: Chain) -> Chained:
        return chain_by_forwards(lambda batch, _: self.forward(batch), chain)


def chain_by_forwards(forward: Callable[[ForwardBatch, F32 | None], ForwardOutput], chain: Chain) -> Chained:
    """What `NativeModel.draft_chain` is to do, one forward and one request at a time."""
    tokens, context_lens, page_table, counts, ends, ids, features = chain
    drafted, logprobs = np.zeros((len(tokens), counts.max()), np.int32), np.zeros((len(tokens), counts.max()), "f4")
    lengths, num_bytes = np.zeros(len(tokens), np.int32), 0
    own = np.zeros((0, 0), "f4") if features is None else features.copy()
    for b, (token, read) in enumerate(zip(tokens.tolist(), context_lens.tolist(), strict=True)):
        while lengths[b] < counts[b] and not (lengths[b] and token in ends):
            one = (np.array([x], np.int32) for x in (token, read))
            batch = ForwardBatch(
                *one, np.array([0, 1], "i4"), np.array([read + 1], "i4"), page_table[b : b + 1], np.zeros(1, "i4")
            )
            out = forward(batch, None if features is None else own[b : b + 1])
            num_bytes += out.weight_bytes + out.kv_bytes
            row, read = out.logits[0].astype(float), read + 1
            at, place = int(row.argmax()), lengths[b]
            token = at if ids is None else int(ids[at])
            drafted[b, place], logprobs[b, place] = token, -np.log(np.exp(row - row.max()).sum())
            lengths[b] += 1
            if features is not None:
                assert out.hidden is not None
                own[b] = out.hidden[0]
    return Chained(drafted, logprobs, lengths, own, num_bytes)


def make_engine(
    *,
    num_pages: int = 64,
    page_size: int = 8,
    max_model_len: int | None = None,
    scheduler: Scheduler | None = None,
    verifier: Verifier | None = None,
    **options: Any,
) -> Engine:
    model = FakeModel(num_pages, page_size)
    pool = KvPool(num_pages, page_size, identity="fake", codec="bf16")
    limit = num_pages * page_size if max_model_len is None else max_model_len
    return Engine(
        model, pool, scheduler or Continuous(), verifier or Greedy(), vocab_size=VOCAB, max_model_len=limit, **options
    )


def drain(engine: Engine, max_steps: int = 10_000) -> list[StepResult]:
    """Steps until nothing is left, checking the pool at every step."""
    results = []
    for _ in range(max_steps):
        if not engine.requests:
            engine.check()
            return results
        results += engine.step()
        engine.check()
    raise AssertionError("the engine did not come to an end")


def generate(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[int]]:
    """Output ids of all prompts, queued together."""
    requests = [engine.add(p, params) for p in prompts]
    drain(engine)
    return [r.output for r in requests]


def expected(prompt: Sequence[int], count: int) -> list[int]:
    """Greedy output, without an engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(logits_after(np.array(tokens)))))
    return tokens[len(prompt) :]


def outputs(results: Sequence[StepResult]) -> dict[str, list[int]]:
    """Tokens by request id, put together from step results."""
    found: dict[str, list[int]] = {}
    for result in results:
        found.setdefault(result.request.id, []).extend(result.tokens)
    return found


def random_prompt(rng: np.random.Generator, low: int = 1, high: int = 40) -> list[int]:
    return rng.integers(VOCAB, size=int(rng.integers(low, high + 1))).tolist()


__all__ = [
    "VOCAB",
    "FakeModel",
    "Request",
    "chain_by_forwards",
    "drain",
    "expected",
    "generate",
    "make_engine",
    "outputs",
    "random_prompt",
]

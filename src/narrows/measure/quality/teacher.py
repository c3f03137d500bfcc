"""Logits of a text that is given: what a model thinks of every token of it, a bounded slice at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from narrows import _native
from narrows.types import F32, ForwardBatch

if TYPE_CHECKING:
    from narrows import LLM

F64 = np.typing.NDArray[np.float64]

CHUNK = 512  # most tokens of a forward
LOGIT_BYTES = 64 << 20  # most bytes of logits at once: the vocabulary may have 262144 tokens
KL_ROWS = 16  # rows compared at once, for the same reason


def forced_logits(model: LLM, tokens: Sequence[int], start: int = 0, num_prompt: int | None = None) -> Iterator[F32]:
    """Logits [n, V] of rows ``start:`` of `tokens`, in order and in slices; row i is about token i + 1.

    The first `num_prompt` tokens are read as a prompt is, the others as output is; default: those before `start`.
    The pages are private and given back when the iterator ends. Two models of one vocabulary give the same slices.
    Raises ValueError when the tokens do not fit the model's context, OutOfPages when requests hold the pages.
    """
    engine = model.engine
    if not 0 <= start < len(tokens) <= engine.max_model_len:
        raise ValueError(
            f"rows {start} to {len(tokens)} of a text were asked for; the model's context is {engine.max_model_len} "
            "tokens: choose a smaller window"
        )
    ids, prompt = np.asarray(tokens, np.int32), start if num_prompt is None else num_prompt
    most = max(1, min(CHUNK, LOGIT_BYTES // (4 * engine.vocab_size)))
    cuts = [*range(0, start, CHUNK), *range(start, len(ids), most), len(ids)]
    pages = engine.pool.alloc(engine.pool.pages_for(len(ids)))
    table = np.asarray([pages], np.int32)
    try:
        for begin, end in pairwise(cuts):
            out = engine.model.forward(
                ForwardBatch(
                    tokens=ids[begin:end],
                    positions=np.arange(begin, end, dtype=np.int32),
                    cu_seqlens=np.array([0, end - begin], np.int32),
                    context_lens=np.array([end], np.int32),
                    page_table=table,
                    logit_rows=np.arange(end - begin if begin >= start else 0, dtype=np.int32),
                    prompt_rows=np.clip(np.array([prompt - begin], np.int32), 0, end - begin),
                )
            )
            if begin >= start:
                yield out.logits
    finally:
        engine.pool.free(pages)


def surprise(logits: F32, tokens: Sequence[int]) -> F64:
    """Negative log-likelihood [R], in nats, of tokens [R] under logits [R, V]."""
    return _native.log_sum_exp(logits) - logits[np.arange(len(tokens)), np.asarray(tokens)]


def divergence(reference: F32, logits: F32) -> F64:
    """KL(reference || other) [R], in nats, of the distributions that two sets of logits [R, V] stand for."""
    blocks = [slice(i, i + KL_ROWS) for i in range(0, len(logits), KL_ROWS)]
    return np.concatenate([_divergence(reference[rows], logits[rows]) for rows in blocks])


def _divergence(a: F32, b: F32) -> F64:
    norm_a, norm_b = _native.log_sum_exp(a), _native.log_sum_exp(b)
    p = np.exp(a - norm_a[:, None].astype(np.float32))
    # sum p (log p - log q); p is normalised again because its rounding times a large difference would show.
    mean = (p * (a - b)).sum(-1, dtype=np.float64) / p.sum(-1, dtype=np.float64)
    return np.maximum(mean - (norm_a - norm_b), 0.0)

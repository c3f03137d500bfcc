"""From a plan to one native call: all index arithmetic of a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from .types import I32, TARGET, Cursor, Draft, ForwardBatch, Request


def build(items: Sequence[tuple[Request, int]]) -> ForwardBatch:
    """The batch in which each request reads its next n tokens, drafted ones included; its pages must be there.

    Logits are asked for where something follows from them: the rows of a draft and of the last token of a request that
    catches up; every row of a prompt whose log-probabilities are wanted. Hidden states are asked for where they are
    pooled.
    """
    return assemble(
        [
            Span(r.cursors[TARGET], _next(r, n), num_logits(r, n), r.draft, r.num_prompt, num_final(r, n))
            for r, n in items
        ]
    )


class Span(NamedTuple):
    """What one request reads in a step: tokens that follow its cursor, and how many of the last of them give logits."""

    cursor: Cursor
    tokens: Sequence[int]
    num_logits: int
    draft: Draft | None = None  # which the last of the tokens are
    num_prompt: int = 0  # tokens of the request that are its prompt
    num_final: int = 0  # of the last of them, whose hidden states are wanted

    def parents(self, first: int) -> Sequence[int]:
        """The row before each on its path, -1 for none; the span's rows begin at `first`."""
        n = len(self.tokens)
        if self.draft is None or self.draft.parents is None:
            return [-1, *range(first, first + n - 1)]
        own = n - len(self.draft.tokens)
        return [-1, *range(first, first + own - 1), *(self.draft.parents + first + own).tolist()]


def assemble(spans: Sequence[Span]) -> ForwardBatch:
    """One forward over the spans of any model's cursors."""
    counts = np.fromiter((len(span.tokens) for span in spans), np.int32, len(spans))
    cu_seqlens = np.zeros(len(spans) + 1, np.int32)
    np.cumsum(counts, out=cu_seqlens[1:])
    starts = np.fromiter((span.cursor.num_read for span in spans), np.int32, len(spans))
    tokens = np.fromiter(chain.from_iterable(span.tokens for span in spans), np.int32, cu_seqlens[-1])
    positions = np.arange(cu_seqlens[-1], dtype=np.int32) + np.repeat(starts - cu_seqlens[:-1], counts)
    parents = None
    if any(span.draft is not None and span.draft.parents is not None for span in spans):
        rows = chain.from_iterable(span.parents(first) for span, first in zip(spans, cu_seqlens.tolist(), strict=False))
        parents = np.fromiter(rows, np.int32, len(tokens))
        for row, parent in enumerate(parents.tolist()):
            if parent >= 0:
                positions[row] = positions[parent] + 1
    pages = page_table([span.cursor for span in spans])
    context_lens, logit_rows = starts + counts, _last(cu_seqlens, [span.num_logits for span in spans])
    prompt_rows = np.clip(np.fromiter((s.num_prompt for s in spans), np.int32, len(spans)) - starts, 0, counts)
    hidden = [span.num_final for span in spans]
    final_rows = _last(cu_seqlens, hidden) if any(hidden) else None
    return ForwardBatch(
        tokens, positions, cu_seqlens, context_lens, pages, logit_rows, parents, prompt_rows, final_rows
    )


def page_table(cursors: Sequence[Cursor]) -> I32:
    """The pages of each cursor, [B, P]."""
    table = np.zeros((len(cursors), max(len(cursor.pages) for cursor in cursors)), np.int32)
    for row, cursor in zip(table, cursors, strict=True):
        row[: len(cursor.pages)] = cursor.pages
    return table


def _last(cu_seqlens: I32, counts: Sequence[int]) -> I32:
    """The last rows of each span, as many as `counts` says."""
    return np.concatenate([np.arange(e - n, e, dtype=np.int32) for e, n in zip(cu_seqlens[1:], counts, strict=True)])


def num_straight(path: Sequence[int]) -> int:
    """Of the accepted tokens of a draft, by index, how many have their KV entries where they belong.

    Those before the path leaves the first branch; what comes after is read again, in place.
    """
    return next((i for i, node in enumerate(path) if node != i), len(path))


def num_logits(request: Request, n: int) -> int:
    """How many of the last rows of its next n tokens give logits."""
    num_read = request.cursors[TARGET].num_read
    if request.pooled is not None:
        return 0
    if request.params.prompt_logprobs is not None and num_read < request.num_prompt:
        return n
    drafted = len(request.draft.tokens) if request.draft else 0
    return drafted + 1 if num_read + n == len(request.tokens) + drafted else 0


def num_final(request: Request, n: int) -> int:
    """How many of the last rows of its next n tokens give final hidden states: those that were not pooled before."""
    if request.pooled is None:
        return 0
    return max(0, request.cursors[TARGET].num_read + n - request.pooled.num)


def _next(request: Request, n: int) -> Sequence[int]:
    start = request.cursors[TARGET].num_read
    tokens = request.tokens[start : start + n]
    missing = n - len(tokens)
    return [*tokens, *request.draft.tokens[:missing].tolist()] if missing and request.draft else tokens

"""Drafts that are trees: a *trunk*, which is the first branch, and what stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .types import F64, Draft


def trunk(draft: Draft) -> Draft:
    """The chain that a draft begins with, each token following the one before."""
    if draft.parents is None:
        return draft
    off = np.flatnonzero(draft.parents != np.arange(-1, len(draft.tokens) - 1))
    n = int(off[0]) if len(off) else len(draft.tokens)
    chain = draft.first(n)
    assert chain is not None
    return replace(chain, parents=None)


def joined(a: Draft | None, b: Draft) -> Draft:
    """A draft, and what goes on from the end of its trunk: one trunk, and then what stands beside either."""
    if a is None:
        return b
    n, m = len(trunk(a).tokens), len(trunk(b).tokens)
    order = np.argsort([0] * n + [2] * (len(a.tokens) - n) + [1] * m + [3] * (len(b.tokens) - m), kind="stable")
    tokens = np.concatenate([a.tokens, b.tokens])[order]
    logprobs = None if a.logprobs is None or b.logprobs is None else np.concatenate([a.logprobs, b.logprobs])[order]
    known = b.probs if a.probs is None else a.probs
    probs = None if known is None else np.concatenate([_probs(part, known.shape[1]) for part in (a, b)])[order]
    if len(tokens) == n + m:
        return Draft(tokens, None, probs, logprobs)
    after = np.concatenate([_parents(a), np.where(_parents(b) < 0, n - 1, _parents(b) + len(a.tokens))])
    places = np.append(np.argsort(order), -1)  # by index before; the last stands for -1
    return Draft(tokens, places[after][order].astype(np.int32), probs, logprobs)


def one_hot(tokens: Sequence[int], size: int) -> F64:
    """[n, size], the distributions of tokens that were certain."""
    rows = np.zeros((len(tokens), size))
    rows[np.arange(len(tokens)), np.asarray(tokens, int)] = 1
    return rows


def _parents(draft: Draft) -> np.ndarray:
    return np.arange(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents


def _probs(draft: Draft, vocab_size: int) -> F64:
    """[k, V]; a deterministic drafter was certain."""
    return one_hot(draft.tokens.tolist(), vocab_size) if draft.probs is None else draft.probs

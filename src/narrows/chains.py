"""Drafting token by token with a model that has cursors of its own: what draft models and heads have in common.

With a verifier that keeps what the target would have chosen, tokens are drawn with the very random numbers the target
will use, so that the two agree as often as their distributions allow; otherwise with numbers of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import _native
from .drafters.base import Ask, Reader, Tools
from .sampling import CounterRng, SamplingParams, adjust, adjusts, choose, distribution, draw
from .types import F32, F64, I32, Draft

STREAM = 1  # of the random numbers that drafts are drawn with where they must not be those of the target's choices


@dataclass(slots=True)
class _Chain:
    """What is being drafted for one request."""

    ask: Ask
    known: list[int]  # the request's tokens and everything drafted for it
    tokens: list[int]
    probs: list[F64]
    logprobs: list[float]
    length: int  # tokens wanted


def draft_chains(asks: Sequence[Ask], tools: Tools, reader: Reader, k: int, chunk: int) -> list[Draft | None]:
    """Up to `k` tokens for each request. Prompts are read `chunk` tokens a step; no draft comes before their end."""
    chains: list[_Chain] = []
    drafts: list[Draft | None] = [None] * len(asks)
    behind: list[tuple[_Chain, list[int]]] = []  # with what it reads next
    for ask in asks:
        known, length = [*ask.request.tokens, *ask.tail], min(k, ask.max_tokens)
        chains.append(_Chain(ask, known, [], [], [], length))
        cursor = reader.cursor(ask.request)
        if not cursor.num_read:
            cursor = reader.start(ask.request, len(ask.request.tokens) - 1)
        unread = known[cursor.num_read : cursor.num_read + chunk]
        if unread and reader.reserve(ask.request, len(known) + length):
            chunk -= len(unread)
            behind.append((chains[-1], unread))
    while behind:
        logits = reader.advance([(chain.ask.request, unread) for chain, unread in behind])
        going = []
        for (chain, _), row in zip(behind, logits, strict=True):
            caught_up = reader.cursor(chain.ask.request).num_read == len(chain.known)
            if caught_up and _append(chain, row, reader.ids, tools):
                going.append((chain, chain.known[-1:]))
        behind = going
    for i, chain in enumerate(chains):
        if chain.tokens:
            probs = np.stack(chain.probs) if chain.probs else None
            logprobs = np.array(chain.logprobs, np.float32)
            drafts[i] = Draft(np.array(chain.tokens, np.int32), probs=probs, logprobs=logprobs)
    return drafts


def _append(chain: _Chain, logits: F32, ids: I32 | None, tools: Tools) -> bool:
    """Drafts one token from the logits of `ids` behind all known ones; whether there is another to draft."""
    request = chain.ask.request
    params: SamplingParams = request.params
    drawn = tools.wants_probs and not params.greedy
    if ids is not None and (drawn or adjusts(params, len(chain.known) - request.num_prompt)):
        logits, ids = _spread(logits, ids, tools.vocab_size), None
    row = logits[None]
    if ids is None and adjusts(params, len(chain.known) - request.num_prompt):
        row = adjust(row, chain.known, request.num_prompt, params, tools.end_ids)
    rng = CounterRng(request.seed, len(chain.known))
    if drawn:
        probs = distribution(row[0], params)
        token = draw(probs, rng.uniform(0, STREAM))
        chain.probs.append(probs)
        logprob = float(np.log(probs[token]))
    else:
        token = choose(row, params, rng, 0)
        logprob = float(row[0, token] - _native.log_sum_exp(row)[0])
        token = token if ids is None else int(ids[token])
    chain.known.append(token)
    chain.tokens.append(token)
    chain.logprobs.append(logprob)
    return len(chain.tokens) < chain.length and token not in tools.end_ids


def _spread(logits: F32, ids: I32, vocab_size: int) -> F32:
    """Logits [V] of the whole vocabulary: a token that is not among `ids` cannot be drafted."""
    row = np.full(vocab_size, -np.inf, np.float32)
    row[ids] = logits
    return row

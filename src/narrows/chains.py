"""Drafting token by token with a model that has cursors of its own: what draft models and heads have in common.

With a verifier that keeps what the target would have chosen, tokens are drawn with the very random numbers the target
will use, so that the two agree as often as their distributions allow; otherwise with numbers of their own.

Where the target chooses otherwise, it is often the next likeliest token. As *leaves* beside the chain such tokens cost
rows of the verification and no drafting: of all that were passed over, those with the likeliest paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from . import _native
from .drafters.base import Ask, Reader, Tools
from .sampling import CounterRng, SamplingParams, adjust, adjusts, choose, distribution, draw
from .trees import one_hot
from .types import F32, F64, I32, Draft

CHAIN = {"k": (1, 64), "leaves": (0, 64)}  # limits of settings
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
    num_leaves: int = 0  # wanted beside them
    leaves: list[tuple[float, int, int]] = field(default_factory=list)  # -log q of its path, place in the chain, token

    @property
    def plain(self) -> bool:
        """Each token is the likeliest, and nothing else is wanted: the core drafts by itself."""
        params, num_output = self.ask.request.params, len(self.known) - self.ask.request.num_prompt
        return params.greedy and not self.num_leaves and not adjusts(params, num_output)

    def extend(self, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        self.known += tokens
        self.tokens += tokens
        self.logprobs += logprobs

    def draft(self, vocab_size: int) -> Draft | None:
        """What was drafted, the chain first, then the likeliest leaves; a leaf was not drawn by chance."""
        if not self.tokens:
            return None
        leaves = sorted(self.leaves)[: self.num_leaves]
        tokens = np.array([*self.tokens, *(token for _, _, token in leaves)], np.int32)
        sums = [0.0, *np.cumsum(self.logprobs)]
        logprobs = np.array([*self.logprobs, *(-cost - sums[place] for cost, place, _ in leaves)], np.float32)
        parents = [*range(-1, len(self.tokens) - 1), *(place - 1 for _, place, _ in leaves)]
        probs = [*self.probs, *one_hot([token for _, _, token in leaves], vocab_size)] if self.probs else []
        tree = np.array(parents, np.int32) if leaves else None
        return Draft(tokens, tree, np.stack(probs) if probs else None, logprobs)


def draft_chains(
    asks: Sequence[Ask], tools: Tools, reader: Reader, k: int, chunk: int, leaves: int = 0
) -> list[Draft | None]:
    """Up to `k` tokens for each request, and `leaves` more beside them where there is room for more.

    Prompts are read `chunk` tokens a step; no draft comes before their end.
    """
    chains: list[_Chain] = []
    behind: list[tuple[_Chain, list[int]]] = []  # with what it reads next
    for ask in asks:
        known, length = [*ask.request.tokens, *ask.tail], min(k, ask.max_tokens)
        chains.append(_Chain(ask, known, [], [], [], length, min(leaves, ask.max_tokens - length)))
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
        plain = [chain for chain, _ in going if chain.plain]
        if plain:
            left = [(chain.ask.request, chain.known[-1], chain.length - len(chain.tokens)) for chain in plain]
            for chain, (found, logprobs) in zip(plain, reader.follow(left, tools.end_ids), strict=True):
                chain.extend(found, logprobs)
        behind = [(chain, unread) for chain, unread in going if not chain.plain]
    return [chain.draft(tools.vocab_size) for chain in chains]


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
    total = 0.0 if drawn and not chain.num_leaves else float(_native.log_sum_exp(row)[0])
    if drawn:
        probs = distribution(row[0], params)
        at = draw(probs, rng.uniform(0, STREAM))
        chain.probs.append(probs)
        logprob = float(np.log(probs[at]))
    else:
        at = choose(row, params, rng, 0)
        logprob = float(row[0, at]) - total
    if chain.num_leaves:
        before, most = -sum(chain.logprobs), min(chain.num_leaves + 1, row.shape[1])
        others = [i for i in np.argpartition(-row[0], most - 1)[:most].tolist() if i != at and np.isfinite(row[0, i])]
        tokens = others if ids is None else ids[others].tolist()
        chain.leaves += [
            (before + total - float(row[0, i]), len(chain.tokens), t) for i, t in zip(others, tokens, strict=True)
        ]
    token = at if ids is None else int(ids[at])
    chain.extend([token], [logprob])
    return len(chain.tokens) < chain.length and token not in tools.end_ids


def _spread(logits: F32, ids: I32, vocab_size: int) -> F32:
    """Logits [V] of the whole vocabulary: a token that is not among `ids` cannot be drafted."""
    row = np.full(vocab_size, -np.inf, np.float32)
    row[ids] = logits
    return row

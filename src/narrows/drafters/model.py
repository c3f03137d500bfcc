"""A smaller model of the same vocabulary drafts (Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import _native
from ..sampling import CounterRng, SamplingParams, adjust, adjusts, choose, distribution, draw
from ..types import F32, F64, Draft
from .base import Ask, Tools

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


@dataclass(frozen=True, slots=True)
class DraftModel:
    """`k` tokens at a time by the model of this name, which has a cursor of its own on every request.

    Prompts are read `chunk` tokens a step beside the target; there is no draft before the cursor has caught up.

    With a verifier that keeps what the target would have chosen, tokens are drawn with the very random numbers the
    target will use, so that the two agree as often as their distributions allow; otherwise with numbers of their own.
    """

    model: str
    k: int = 4
    chunk: int = 512

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model is empty; it must be a short name or a path")
        for name, low, high in (("k", 1, 64), ("chunk", 16, 65536)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be between {low} and {high}")

    @property
    def max_drafted(self) -> int:
        return self.k

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model,)

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        reader, chunk = tools.readers[self.model], self.chunk
        chains: list[_Chain] = []
        drafts: list[Draft | None] = [None] * len(asks)
        behind: list[tuple[_Chain, list[int]]] = []  # with what it reads next
        for ask in asks:
            known, length = [*ask.request.tokens, *ask.tail], min(self.k, ask.max_tokens)
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
                if caught_up and self._append(chain, row, tools):
                    going.append((chain, chain.known[-1:]))
            behind = going
        for i, chain in enumerate(chains):
            if chain.tokens:
                probs = np.stack(chain.probs) if chain.probs else None
                logprobs = np.array(chain.logprobs, np.float32)
                drafts[i] = Draft(np.array(chain.tokens, np.int32), probs=probs, logprobs=logprobs)
        return drafts

    def _append(self, chain: _Chain, logits: F32, tools: Tools) -> bool:
        """Drafts one token from the logits [V] behind all known ones; whether there is another to draft."""
        request = chain.ask.request
        params: SamplingParams = request.params
        row = logits[None]
        if adjusts(params, len(chain.known) - request.num_prompt):
            row = adjust(row, chain.known, request.num_prompt, params, tools.end_ids)
        rng = CounterRng(request.seed, len(chain.known))
        if tools.wants_probs and not params.greedy:
            probs = distribution(row[0], params)
            token = draw(probs, rng.uniform(0, STREAM))
            chain.probs.append(probs)
            logprob = float(np.log(probs[token]))
        else:
            token = choose(row, params, rng, 0)
            logprob = float(row[0, token] - _native.log_sum_exp(row)[0])
        chain.known.append(token)
        chain.tokens.append(token)
        chain.logprobs.append(logprob)
        return len(chain.tokens) < chain.length and token not in tools.end_ids

"""A model, the pages it remembers requests in, and its cursor on each of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from .batch import Span, assemble, page_table
from .kv.pool import KvPool
from .types import F32, I32, Cursor, ForwardBatch, ForwardOutput, Request


class Model(Protocol):
    def forward(self, batch: ForwardBatch) -> ForwardOutput: ...


class Reader:
    """Moves the cursors that go by `name`. The target is one reader of a request; a draft model is another."""

    ids: I32 | None = None  # the tokens that logits are of, in order; None: all there are

    def __init__(self, name: str, model: Model, pool: KvPool) -> None:
        self.name, self.model, self.pool = name, model, pool
        self.num_bytes = 0  # read by `advance` so far, weights and KV

    def cursor(self, request: Request) -> Cursor:
        """The request's cursor; a new one stands at the beginning."""
        return request.cursors.setdefault(self.name, Cursor())

    def start(self, request: Request, limit: int) -> Cursor:
        """A new cursor on the pages that are known to hold the request's beginning, at most `limit` tokens of it."""
        pages = self.pool.share(self.pool.lookup(request, limit))
        cursor = Cursor(len(pages) * self.pool.page_size, pages, len(pages))
        request.cursors[self.name] = cursor
        return cursor

    def reserve(self, request: Request, length: int) -> bool:
        """Takes the pages for reading up to `length` tokens; False, taking none, when there are not enough."""
        cursor = self.cursor(request)
        missing = self.pool.pages_for(length) - len(cursor.pages)
        if missing > self.pool.num_free:
            return False
        cursor.pages += self.pool.alloc(max(0, missing))
        return True

    def advance(self, items: Sequence[tuple[Request, Sequence[int]]]) -> F32:
        """Reads the tokens that follow each request's cursor, in reserved pages: the last one's logits [B, V].

        V is the length of `ids`, where those are not all.
        """
        out = self.model.forward(assemble([Span(self.cursor(request), tokens, 1) for request, tokens in items]))
        for request, tokens in items:
            self.cursor(request).num_read += len(tokens)
        self.num_bytes += out.weight_bytes + out.kv_bytes
        return out.logits

    def feed(self, request: Request, start: int, hidden: F32) -> None:
        """What the target made of the request's tokens from `start` on, [n, width]: of use to heads only."""

    def settle(self, request: Request, length: int) -> None:
        """After a commit: forgets drafted tokens that were not kept, and lets others share pages that became full.

        `length` is up to where what was read agrees with the committed tokens, the last of which is always the target's
        own choice. It is the same for every cursor, as all of them read the same draft or less of it.
        """
        cursor = self.cursor(request)
        if cursor.num_read > length:
            cursor.num_read, cursor.pages = self.pool.truncate(cursor, length)
            cursor.num_full = min(cursor.num_full, cursor.num_read // self.pool.page_size)
        self.pool.publish(request, cursor, cursor.num_full)
        cursor.num_full = cursor.num_read // self.pool.page_size

    def release(self, request: Request) -> None:
        """Gives the request's pages back; the cursor returns to the beginning."""
        self.pool.free(self.cursor(request).pages)
        request.cursors[self.name] = Cursor()


class Chain(NamedTuple):
    """What `draft_chain` goes on from: a token of each of B requests, which is read first."""

    tokens: I32  # [B]
    context_lens: I32  # [B] entries before it
    page_table: I32  # [B, P] for those, the token, and all but the last that is taken
    counts: I32  # [B] tokens to take; fewer where one of `ends` comes first
    ends: I32
    ids: I32 | None = None  # the tokens that logits are of, where those are not all
    features: F32 | None = None  # [B, H] of a head


class Chained(NamedTuple):
    """What `draft_chain` drafted: of row b the first lengths[b] entries."""

    tokens: I32  # [B, K]
    logprobs: F32  # [B, K]
    lengths: I32  # [B]
    states: F32  # [B, H] a head's own behind the last token it read; no rows for other models
    num_bytes: int  # read, weights and KV


class Draftsman(Model, Protocol):
    """A model that drafts; see `NativeModel.draft_chain`."""

    def draft_chain(self, chain: Chain) -> Chained: ...


class DraftReader(Reader):
    """The reader of a model that drafts."""

    def __init__(self, name: str, model: Draftsman, pool: KvPool) -> None:
        super().__init__(name, model, pool)
        self.draftsman = model
        self.in_use = True  # else what waits to be read may be forgotten

    def follow(
        self, items: Sequence[tuple[Request, int, int]], ends: Collection[int]
    ) -> list[tuple[list[int], list[float]]]:
        """For each (request, token, count): reads the token at its cursor, the likeliest to follow that, and so on, in
        reserved pages; up to `count` tokens, or one of `ends`. Gives these, of which the last is not read, and their
        log-probabilities.
        """
        cursors = [self.cursor(request) for request, _, _ in items]
        tokens, counts = (np.array([item[i] for item in items], np.int32) for i in (1, 2))
        starts = np.array([cursor.num_read for cursor in cursors], np.int32)
        features = self._own_features([request for request, _, _ in items])
        last = np.array([*ends], np.int32)
        chain = Chain(tokens, starts, page_table(cursors), counts, last, self.ids, features)
        out = self.draftsman.draft_chain(chain)
        self.num_bytes += out.num_bytes
        found = []
        for i, (request, _, _) in enumerate(items):
            length = int(out.lengths[i])
            cursors[i].num_read += length
            found.append((out.tokens[i, :length].tolist(), out.logprobs[i, :length].tolist()))
            if features is not None:
                self._keep_own(request, out.states[i])
        return found

    def _own_features(self, requests: Sequence[Request]) -> F32 | None:
        """What a head reads beside the first token of each, [B, H]."""

    def _keep_own(self, request: Request, state: F32) -> None:
        """The head's own state [H] behind the last token it read."""

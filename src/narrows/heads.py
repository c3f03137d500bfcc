"""The cursor of a head, which drafts from the hidden states of its target (EAGLE-3, arXiv:2503.01840).

With each token a head reads a *feature*, what was made of the tokens before it. That is the target's, three layers
fused into one vector; where the target has not been yet, while the head drafts, it is the head's own state behind the
token before. A feature that nobody knows, such as that of the first token, is zero.

What the head remembers of a token that it read with its own state is read again with the target's once that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from .batch import Span, assemble
from .kv.pool import KvPool
from .reader import DraftReader, Draftsman
from .types import F32, I32, Cursor, ForwardBatch, ForwardOutput, Request

MOST = 256  # features that wait for the next draft; more are read at once, or forgotten while drafts do not pay
LESS = 64  # when some are forgotten, so many more, lest it be at every step


class HeadModel(Draftsman, Protocol):
    def forward(self, batch: ForwardBatch, features: F32 | None = None) -> ForwardOutput:
        """Features [T, H]; `hidden` of what is returned is the head's own state behind each token, [T, H]."""
        ...


@dataclass(frozen=True, slots=True)
class Fusion:
    """Makes features [n, H] of the target's states [n, width]; `num_bytes` are read each time."""

    apply: Callable[[F32], F32]
    width: int
    hidden_size: int  # H
    num_bytes: int = 0


@dataclass(slots=True)
class _Features:
    """What is known of the states behind a request's tokens."""

    own: F32  # [H], the head's, behind the last token it read
    buffer: F32  # [room, width]
    begin: int = 0  # in the buffer
    count: int = 0  # states of the target, one a token
    first: int = 0  # the token of the first
    num_sure: int = 0  # tokens at the beginning that will not be read again
    fed: list[tuple[int, F32]] = field(default_factory=list)  # states not in the buffer yet, and their first tokens
    num_fed: int = 0

    @property
    def rows(self) -> F32:
        """[count, width]"""
        return self.buffer[self.begin : self.begin + self.count]

    @property
    def end(self) -> int:
        return self.first + self.count

    def feed(self, start: int, hidden: F32) -> None:
        """The states [n, width] of the tokens from `start` on, in place of what is there or follows."""
        self.fed.append((start, hidden))
        self.num_fed += len(hidden)

    def take_in(self) -> None:
        """Puts in their places what was fed; before that it is not known."""
        for start, hidden in self.fed:
            self._put(start, hidden)
        self.fed, self.num_fed = [], 0

    def _put(self, start: int, hidden: F32) -> None:
        keep = start - self.first
        if not 0 <= keep <= self.count:
            keep, self.first = 0, start
        stop = self.begin + keep + len(hidden)
        if stop > len(self.buffer):  # twice what is needed: a token is not copied at every step
            known, self.begin, stop = self.rows[:keep], 0, keep + len(hidden)
            self.buffer = np.empty((2 * stop, hidden.shape[1]), np.float32)
            self.buffer[:keep] = known
        self.buffer[stop - len(hidden) : stop] = hidden
        self.count = keep + len(hidden)

    def drop(self, count: int) -> None:
        """Forgets so many of the first tokens' states."""
        self.first, self.begin, self.count = self.first + count, self.begin + count, self.count - count


class HeadReader(DraftReader):
    """Moves a head's cursors. Its pages are its own; prefixes are shared there as those of other models are.

    `ids` [V] are the tokens that the head may draft.
    """

    def __init__(self, name: str, model: HeadModel, pool: KvPool, fusion: Fusion, ids: I32) -> None:
        super().__init__(name, model, pool)
        self.head, self.fusion, self.ids, self.num_ids = model, fusion, ids, len(ids)

    def _features(self, request: Request) -> _Features:
        known = self._fed(request)
        known.take_in()
        return known

    def _fed(self, request: Request) -> _Features:
        """As they were when they were last needed."""
        known: _Features | None = request.state.get(self.name)
        if known is None:
            known = _Features(self._unknown, np.empty((0, self.fusion.width), np.float32))
            request.state[self.name] = known
        return known

    @property
    def _unknown(self) -> F32:
        return np.zeros(self.fusion.hidden_size, np.float32)

    def feed(self, request: Request, start: int, hidden: F32) -> None:
        """hidden [n, width] of the tokens from `start` on; they follow what is known, or what was read elsewhere."""
        self._fed(request).feed(start, hidden)

    def start(self, request: Request, limit: int) -> Cursor:
        cursor = super().start(request, limit)
        self._features(request).num_sure = cursor.num_read
        return cursor

    def advance(self, items: Sequence[tuple[Request, Sequence[int]]]) -> F32:
        """As for any model; a token whose feature is the head's own state has to wait until that is there."""
        logits = np.empty((len(items), self.num_ids), np.float32)
        left = {i: (request, tokens) for i, (request, tokens) in enumerate(items)}
        while left:
            features = [self._next(request, len(tokens)) for request, tokens in left.values()]
            spans = [
                Span(self.cursor(request), tokens[: len(rows)], 1)
                for (request, tokens), rows in zip(left.values(), features, strict=True)
            ]
            out = self.head.forward(assemble(spans), np.concatenate(features))
            assert out.hidden is not None
            self.num_bytes += out.weight_bytes + out.kv_bytes
            last = np.cumsum([len(rows) for rows in features]) - 1
            for (i, (request, _)), rows, row, end in zip(left.items(), features, out.logits, last, strict=True):
                self.cursor(request).num_read += len(rows)
                self._features(request).own = out.hidden[end]
                logits[i] = row
            left = {
                i: (request, tokens[len(rows) :])
                for (i, (request, tokens)), rows in zip(left.items(), features, strict=True)
                if len(tokens) > len(rows)
            }
        return logits

    def _next(self, request: Request, count: int) -> F32:
        """Features [n, H] of the n <= count tokens after the cursor for which they are known, at least of one."""
        known, start = self._features(request), self.cursor(request).num_read
        low = start - 1  # the token whose state is the first feature
        if low >= known.end:
            return known.own[None]
        raw = np.zeros((min(count, known.end - low), self.fusion.width), np.float32)
        missing = min(max(known.first - low, 0), len(raw))
        begin = low + missing - known.first
        raw[missing:] = known.rows[begin : begin + len(raw) - missing]
        if known.num_sure == start:
            known.num_sure += len(raw)
            known.drop(min(max(known.num_sure - 2 - known.first, 0), known.count))  # a cursor may go back by a token
        self.num_bytes += self.fusion.num_bytes
        return self.fusion.apply(raw)

    def _own_features(self, requests: Sequence[Request]) -> F32:
        for request in requests:
            assert self.cursor(request).num_read > self._features(request).end, "the target's state is there"
        return np.stack([self._features(request).own for request in requests])

    def _keep_own(self, request: Request, state: F32) -> None:
        self._features(request).own = state

    def settle(self, request: Request, length: int) -> None:
        known, cursor = self._fed(request), self.cursor(request)
        num_read = cursor.num_read
        super().settle(request, min(length, known.num_sure))
        if cursor.num_read < num_read:
            known.own, known.num_sure = self._unknown, min(known.num_sure, cursor.num_read)
        if known.count + known.num_fed <= MOST:
            return
        known.take_in()
        if known.end - max(known.first, known.num_sure) > MOST:
            if self.in_use:
                self._catch_up(request)
            else:
                known.drop(known.count - MOST + LESS)

    def _catch_up(self, request: Request) -> None:
        """Reads what the target has read, if there is room; else its states are forgotten."""
        known, cursor = self._features(request), self.cursor(request)
        if not cursor.num_read:
            cursor = self.start(request, len(request.tokens) - 1)
        end = min(known.end + 1, len(request.tokens))
        if cursor.num_read < end and self.reserve(request, end):
            self.advance([(request, request.tokens[cursor.num_read : end])])
            super().settle(request, known.num_sure)
        else:
            known.drop(known.count)

    def release(self, request: Request) -> None:
        super().release(request)
        request.state.pop(self.name, None)

"""A target whose hidden states say which tokens they are of, and a head that checks what it is given."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np
from fake_model import VOCAB, FakeModel, chain_by_forwards, logits_after, make_engine

from narrows.drafters.base import Source
from narrows.drafters.head import Head
from narrows.engine import Engine
from narrows.heads import Fusion, HeadReader
from narrows.kv.pool import KvPool
from narrows.pacers.fixed import Fixed
from narrows.reader import Chain, Chained
from narrows.speculation import Speculation
from narrows.types import F32, ForwardBatch, ForwardOutput

OWN = 0.5  # added to a state that is the head's own


def state_after(tokens: np.ndarray) -> float:
    """What the target's hidden state behind these tokens is, a number of its own and never zero."""
    return float(1 + crc32(tokens.astype(np.int32).tobytes()) % (1 << 20))


class HiddenModel(FakeModel):
    """Gives the state behind each of the batch's tokens beside the logits."""

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        out = super().forward(batch)
        return replace(out, hidden=np.array([[state_after(path)] for path in paths(self, batch)], np.float32))


def paths(model: FakeModel, batch: ForwardBatch) -> list[np.ndarray]:
    """For each row of a batch that was just read, the tokens up to it."""
    found = []
    for b, context in enumerate(batch.context_lens):
        low, high = batch.cu_seqlens[b], batch.cu_seqlens[b + 1]
        start = context - (high - low)
        seen = model.store[batch.page_table[b, : -(-context // model.page_size)]].ravel()
        for t in range(low, high):
            row, path = t, []
            while row >= low:
                path.append(start + row - low)
                row = row - 1 if batch.parents is None else int(batch.parents[row])
            found.append(np.concatenate([seen[:start], seen[path[::-1]]]))
    return found


@dataclass
class FakeHead:
    """Foresees the target as long as features are right, and keeps apart what it read with its own states.

    `exact` makes its own states the target's. `known` counts features by kind.
    """

    model: FakeModel
    exact: bool = False
    right: Any = logits_after
    known: dict[str, int] = field(default_factory=lambda: {"target": 0, "own": 0, "none": 0})
    own_entries: set[tuple[int, int]] = field(default_factory=set)  # (page, slot)

    def forward(self, batch: ForwardBatch, features: F32 | None) -> ForwardOutput:
        assert features is not None
        assert features.shape == (len(batch.tokens), 1)
        self.model.forward(replace(batch, logit_rows=batch.logit_rows[:0]))
        read = paths(self.model, batch)
        for row, (path, feature) in enumerate(zip(read, features[:, 0].tolist(), strict=True)):
            b = int(np.searchsorted(batch.cu_seqlens, row, side="right")) - 1
            at = len(path) - 1
            slot = (int(batch.page_table[b, at // self.model.page_size]), at % self.model.page_size)
            before = state_after(path[:-1]) if at else 0.0
            kind = "none" if feature == 0 else "own" if feature == before + OWN else "target"
            assert kind != "target" or feature == before, "the state of other tokens"
            self.known[kind] += 1
            (self.own_entries.add if kind == "own" else self.own_entries.discard)(slot)
            if kind == "target":  # read with the target's states, and so is everything before it
                held = batch.page_table[b].tolist()
                assert not any(
                    (held[i // self.model.page_size], i % self.model.page_size) in self.own_entries for i in range(at)
                )
        logits = np.stack([self.right(read[row]) for row in batch.logit_rows])
        hidden = np.array([[state_after(path) + (0 if self.exact else OWN)] for path in read], np.float32)
        return ForwardOutput(logits, 100, 10, 1e-7, hidden)

    def draft_chain(self, chain: Chain) -> Chained:
        return chain_by_forwards(self.forward, chain)


def head_reader(*, num_pages: int = 64, page_size: int = 8, **options: Any) -> HeadReader:
    """Of a head that drafts every token there is."""
    pool = KvPool(num_pages, page_size, identity="head", codec="bf16")
    head = FakeHead(FakeModel(num_pages, page_size), **options)
    return HeadReader("head", head, pool, Fusion(lambda rows: rows, 1, 1), np.arange(VOCAB, dtype=np.int32))


def engine_with_head(drafter: Any = None, reader: HeadReader | None = None, **options: Any) -> tuple[Engine, FakeHead]:
    sizes = {k: options[k] for k in ("num_pages", "page_size") if k in options}
    reader = reader or head_reader(**sizes)
    drafting = Speculation(drafter or Head(), Fixed(), {Source("head", "auto"): reader})
    engine = make_engine(speculation=drafting, **options)
    engine.model = engine.target.model = HiddenModel(**{"num_pages": 64, "page_size": 8, **sizes})
    head = reader.head
    assert isinstance(head, FakeHead)
    return engine, head

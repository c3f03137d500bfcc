"""Drafting in one native call: what forwards one by one give, for models and for heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_model import chain_by_forwards
from tiny_heads import write_tiny_head

from narrows import LLM
from narrows.native import NativeModel
from narrows.reader import Chain
from narrows.types import F32, I32, ForwardBatch

B, MOST = 3, 9
TABLE = np.array([[0, 1], [2, 3], [5, 4]], np.int32)
COUNTS = np.array([MOST, 1, 4], np.int32)
STARTS = [62, 0, 20]  # the first crosses into its second page, the second has nothing before


def arguments(vocab: int, ends: list[int]) -> list[Any]:
    tokens = np.random.default_rng(1).integers(3, vocab, B).astype(np.int32)
    return [tokens, np.array(STARTS, np.int32), TABLE, COUNTS, np.array(ends, np.int32)]


def fill(model: NativeModel, features: Callable[[int], F32] | None = None) -> None:
    """Reads what is before the tokens of each request."""
    for b, count in enumerate(STARTS):
        if count:
            ids: I32 = np.random.default_rng(b).integers(3, 270, count).astype(np.int32)
            batch = ForwardBatch(
                ids,
                np.arange(count, dtype=np.int32),
                np.array([0, count], np.int32),
                np.array([count], np.int32),
                TABLE[b : b + 1].copy(),
                ids[:0],
            )
            model.forward(batch, features(count) if features else None)


@pytest.fixture(scope="module")
def model(tiny_path: Path) -> NativeModel:
    return LLM(tiny_path, num_threads=2, cache=False).loaded.model


@pytest.fixture(scope="module")
def head(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[NativeModel, I32]:
    llm = LLM(tiny_path, num_threads=2, cache=False)
    folder = write_tiny_head(tmp_path_factory.mktemp("head") / "head", tiny_path, llm.loaded.spec)
    loaded = LLM(tiny_path, f"draft=head:name={folder}", num_threads=2, cache=False).loaded
    assert loaded.engine.speculation is not None
    [reader] = loaded.engine.speculation.readers.values()
    return reader.model, reader.ids  # type: ignore[attr-defined]


def test_a_model_drafts_what_its_forwards_choose(model: NativeModel) -> None:
    fill(model)
    before = model._native.weight_bytes + model._native.kv_bytes
    got = model.draft_chain(Chain(*arguments(270, [])))
    assert got.num_bytes == model._native.weight_bytes + model._native.kv_bytes - before > 0
    want = chain_by_forwards(lambda batch, _: model.forward(batch), Chain(*arguments(270, [])))
    assert got.lengths.tolist() == COUNTS.tolist()
    for b, n in enumerate(COUNTS):
        assert got.tokens[b, :n].tolist() == want.tokens[b, :n].tolist()
        np.testing.assert_allclose(got.logprobs[b, :n], want.logprobs[b, :n], atol=1e-5)
    assert got.states.shape[0] == 0


def test_a_chain_stops_behind_an_end(model: NativeModel) -> None:
    fill(model)
    whole = model.draft_chain(Chain(*arguments(270, []))).tokens[0].tolist()
    end = whole[3]
    got = model.draft_chain(Chain(*arguments(270, [end])))
    assert got.tokens[0, : got.lengths[0]].tolist() == whole[: whole.index(end) + 1]
    assert got.lengths[1] == 1


def test_a_head_goes_on_from_its_own_states(head: tuple[NativeModel, I32]) -> None:
    model, ids = head
    rng = np.random.default_rng(7)
    fill(model, lambda count: np.random.default_rng(count).standard_normal((count, 64)).astype(np.float32))
    features = rng.standard_normal((B, 64)).astype(np.float32)
    got = model.draft_chain(Chain(*arguments(270, []), ids, features))
    want = chain_by_forwards(model.forward, Chain(*arguments(270, []), ids, features))
    for b, n in enumerate(COUNTS):
        assert got.tokens[b, :n].tolist() == want.tokens[b, :n].tolist()
        assert set(got.tokens[b, :n].tolist()) <= set(ids.tolist())
        np.testing.assert_allclose(got.logprobs[b, :n], want.logprobs[b, :n], atol=1e-5)
    np.testing.assert_array_equal(got.states, want.states)


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        (0, np.array([1, 2, 1 << 20], np.int32), "tokens out of range"),
        (1, np.array([62, 0, 125], np.int32), "no room for what is drafted"),
        (1, np.array([-1, 0, 20], np.int32), "no room for what is drafted"),
        (2, np.array([[0, 1], [2, 3], [1 << 20, 4]], np.int32), "does not exist"),
        (3, np.array([9, 0, 4], np.int32), "counts out of range"),
        (3, np.array([9, 1], np.int32), "disagree on the number of requests"),
    ],
)
def test_what_does_not_fit_is_refused(model: NativeModel, place: int, value: I32, problem: str) -> None:
    given = arguments(270, [])
    given[place] = value
    with pytest.raises(ValueError, match=problem):
        model.draft_chain(Chain(*given))


def test_features_and_ids_must_fit(model: NativeModel, head: tuple[NativeModel, I32]) -> None:
    features = np.zeros((B, 64), np.float32)
    with pytest.raises(ValueError, match="no other model"):
        model.draft_chain(Chain(*arguments(270, []), None, features))
    with pytest.raises(ValueError, match="no other model"):
        head[0].draft_chain(Chain(*arguments(270, []), head[1]))
    with pytest.raises(ValueError, match=r"features must be \[B, H\]"):
        head[0].draft_chain(Chain(*arguments(270, []), head[1], features[:2]))
    with pytest.raises(ValueError, match="ids must name every output"):
        head[0].draft_chain(Chain(*arguments(270, []), head[1][:-1], features))
    with pytest.raises(ValueError, match="ids out of range"):
        head[0].draft_chain(Chain(*arguments(270, []), head[1] + 1000, features))

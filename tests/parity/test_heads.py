"""Hidden states out of the native forward, and into a head: the oracle's, and without a trace in the logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_heads import write_tiny_head

from narrows import LLM
from narrows.checkpoints.head import FUSE, open_head
from narrows.native import NativeModel
from narrows.ref.head import head_states
from narrows.ref.model import rms_norm
from narrows.types import F32, I32, ForwardBatch, Request
from narrows.weights import unpack
from narrows.weights.compressed import load_compressed

TOKENS = np.random.default_rng(3).integers(3, 270, 70).astype(np.int32)


def batch(tokens: I32, rows: I32) -> ForwardBatch:
    n = np.array([len(tokens)], np.int32)
    cu_seqlens, table = np.array([0, n[0]], np.int32), np.array([[5, 2]], np.int32)
    return ForwardBatch(tokens, np.arange(len(tokens), dtype=np.int32), cu_seqlens, n, table, rows)


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> LLM:
    return LLM(tiny_path, num_threads=2, cache=False)


def states(model: NativeModel, layers: tuple[int, ...], rows: I32) -> tuple[F32, F32]:
    model.hidden_of = layers
    try:
        out = model.forward(batch(TOKENS, rows))
    finally:
        model.hidden_of = ()
    assert out.hidden is not None
    return out.logits, out.hidden


def test_hidden_states_change_no_bit_of_the_logits(llm: LLM) -> None:
    rows = np.array([0, 13, 69], np.int32)
    plain = llm.loaded.model.forward(batch(TOKENS, rows))
    logits, hidden = states(llm.loaded.model, (0, 1, 2), rows)
    assert plain.hidden is None
    assert np.array_equal(logits, plain.logits)
    assert hidden.shape == (70, 3 * 64)


def test_hidden_states_are_the_stream_before_each_layer(llm: LLM) -> None:
    rows = np.arange(70, dtype=np.int32)
    logits, hidden = states(llm.loaded.model, (0, 2), rows)
    tensors = llm.loaded.model.tensors
    assert np.array_equal(hidden[:, :64], unpack(tensors["embed"])[TOKENS])
    last = rms_norm(hidden[:, 64:].astype(np.float64), tensors["norm"], llm.loaded.spec.norm_eps)
    assert np.abs(last @ unpack(tensors["head"]).T - logits).max() < 2e-3


def test_layers_that_there_are_not_are_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="layers: out of range"):
        states(llm.loaded.model, (3,), np.array([0], np.int32))


def test_features_are_for_heads_only(llm: LLM) -> None:
    model = llm.loaded.model
    model.hidden_of = (0,)
    with pytest.raises(ValueError, match="features are what a drafting head reads, and no other model"):
        model.forward(batch(TOKENS, TOKENS[:0]), np.zeros((70, 64), np.float32))
    model.hidden_of = ()


def test_a_head_is_its_oracle_on_the_targets_states_and_on_its_own(llm: LLM, tiny_path: Path, tmp_path: Path) -> None:
    """Two tokens deep: the first entries read the target's states, the last reads the head's own."""
    folder = write_tiny_head(tmp_path / "head", tiny_path, llm.loaded.spec)
    loaded = LLM(tiny_path, f"draft=head:name={folder} pace=fixed", num_threads=2, cache=False).loaded
    assert loaded.engine.speculation is not None
    [reader] = loaded.engine.speculation.readers.values()
    request = Request("r", TOKENS.tolist(), 70, None, 0, 0.0)
    _, hidden = states(llm.loaded.model, (0, 1, 2), TOKENS[:0])
    reader.feed(request, 0, hidden[:69])
    assert reader.reserve(request, 72)
    got = [reader.advance([(request, request.tokens)])[0], reader.advance([(request, [9])])[0]]

    head = open_head(folder, loaded.spec)
    stored = {n: unpack(m) for n, m in load_compressed(head.matrices, "dense", cache=False).items()} | head.norms
    weights = {name: w.astype(np.float64) for name, w in stored.items()}
    embed, output = unpack(loaded.model.tensors["embed"]), unpack(loaded.model.tensors["head"])[::2]
    features = np.zeros((71, 64))
    features[1:70] = (hidden[:69] * head.scale) @ weights[FUSE].T
    embeds = embed[[*TOKENS, 9]].astype(np.float64)
    features[70] = head_states(loaded.spec, weights, embeds[:70], features[:70])[-1]
    want = head_states(loaded.spec, weights, embeds, features)[-2:]
    want = rms_norm(want, weights["norm"], loaded.spec.norm_eps) @ output.T
    assert np.abs(np.array(got) - want).max() < 0.01 * np.abs(want).max()  # the output rows become int8

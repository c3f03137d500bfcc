"""Perplexity and divergence against the oracle on tiny models, and the protocol of windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from narrows import LLM, ref
from narrows.checkpoints import open_checkpoint
from narrows.measure.quality import teacher
from narrows.measure.quality.base import DataError
from narrows.measure.quality.drift import Drift, repetition
from narrows.measure.quality.text import Divergence, Perplexity
from narrows.models import declare
from narrows.types import F32
from narrows.weights import Packed, load_weights, unpack

TEXT = (
    "The rest of the water in the cellar was seen again and again on the stones, so he went to the other shore. " * 12
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "cellar.txt"
    path.write_text(TEXT)
    return str(path)


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> LLM:
    return LLM(tiny_path, num_threads=1, cache=False)


@pytest.fixture(scope="module")
def other(tiny_gguf: Callable[..., Path]) -> LLM:
    return LLM(tiny_gguf(seed=1), num_threads=1, cache=False)


def bf16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def oracle(llm: LLM, ids: list[int]) -> F32:
    """Log-probabilities [T, V] in plain numpy, with keys and values stored as the cache stores them."""
    ckpt = open_checkpoint(llm.loaded.path)
    spec, sources = declare(ckpt)
    tensors = load_weights(ckpt, spec, sources, cache=False)
    plain = {name: unpack(w) if isinstance(w, Packed) else w for name, w in tensors.items()}
    x = ref.forward(spec, plain, ids, store=bf16).astype(np.float64)
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)


def test_perplexity_is_that_of_the_oracle(tiny: LLM, text: str) -> None:
    measure = Perplexity(window=128, chunks=3, text=text)
    items = measure.items(None, tiny)
    for item, record in zip(items, measure.run(tiny, None, items), strict=True):
        logp = oracle(tiny, item.content)
        want = -logp[np.arange(64, 127), item.content[65:]].mean()
        assert record["tokens"] == 63
        assert np.exp(record["nll"]) == pytest.approx(np.exp(want), rel=1e-5)


def test_divergence_is_that_of_the_oracle(tiny: LLM, other: LLM, text: str) -> None:
    measure = Divergence(window=64, chunks=1, text=text)
    items = measure.items(None, tiny)
    (record,) = measure.run(other, tiny, items)
    p, q = (oracle(llm, items[0].content)[32:63] for llm in (tiny, other))
    want = (np.exp(p) * (p - q)).sum(-1)
    assert record["each"] == pytest.approx(want, rel=1e-3, abs=1e-6)
    assert record["kl"] == pytest.approx(want.mean(), rel=1e-4)
    assert record["same"] == (p.argmax(-1) == q.argmax(-1)).mean()


def test_a_model_does_not_diverge_from_itself(tiny: LLM, text: str) -> None:
    measure = Divergence(window=64, chunks=2, text=text)
    for record in measure.run(tiny, tiny, measure.items(None, tiny)):
        assert record["kl"] == 0
        assert record["same"] == 1


def test_windows_do_not_overlap_and_begin_with_bos_where_the_model_has_it(
    tiny: LLM, tiny_gguf: Callable[..., Path], text: str
) -> None:
    ids = tiny.tokenizer.encode(TEXT.removesuffix("\n"))
    plain = Perplexity(window=100, text=text).items(None, tiny)
    assert [i.content for i in plain] == [ids[n : n + 100] for n in range(0, len(ids) - 99, 100)]
    assert [i.id for i in plain[:2]] == ["cellar.txt/0", "cellar.txt/1"]
    opened = LLM(tiny_gguf(metadata={"tokenizer.ggml.add_bos_token": True}), num_threads=1, cache=False)
    first, second = Perplexity(window=100, chunks=2, text=text).items(None, opened)
    assert first.content == [1, *ids[:99]]
    assert second.content == [1, *ids[100:199]]


def test_logits_in_slices_are_those_in_one_piece(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tiny.tokenizer.encode(TEXT)[:90]
    (whole,) = teacher.forced_logits(tiny, ids)
    monkeypatch.setattr(teacher, "LOGIT_BYTES", 4 * tiny.engine.vocab_size * 7)
    sliced = list(teacher.forced_logits(tiny, ids, 40))
    assert max(map(len, sliced)) == 7
    assert np.array_equal(np.concatenate(sliced), whole[40:])
    assert tiny.engine.pool.num_free == tiny.engine.pool.num_pages


def test_pages_come_back_when_reading_stops_early(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "LOGIT_BYTES", 4 * tiny.engine.vocab_size)
    reading = teacher.forced_logits(tiny, [5] * 10)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert tiny.engine.pool.num_free == tiny.engine.pool.num_pages


def test_own_text_is_the_same_every_time(
    tiny: LLM, other: LLM, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Perplexity(window=64, chunks=3)
    again = LLM(tiny_path, num_threads=1, cache=False)
    found = []
    for i, llm in enumerate((tiny, again, other)):
        monkeypatch.setenv("NARROWS_CACHE", str(tmp_path / str(i)))
        found.append(measure.items(None, llm))
    assert found[0] == found[1] != found[2]
    assert [len(item.content) for item in found[0]] == [64] * 3
    assert found[0][0].id == "own/0"


def test_own_text_is_written_once(
    tiny: LLM, other: LLM, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARROWS_CACHE", str(tmp_path))
    measure = Perplexity(window=64, chunks=3)
    found = measure.items(None, tiny)
    again = LLM(tiny_path, num_threads=1, cache=False)
    with monkeypatch.context() as patch:
        patch.setattr(again, "generate", None)
        assert measure.items(None, again) == found
    assert measure.items(None, other) != found
    assert len(measure.items(None, tiny)) == len(replace(measure, chunks=2).items(None, tiny)) + 1
    for damaged in (tmp_path / "texts").iterdir():
        damaged.write_text("[[")
    assert measure.items(None, tiny) == found


def test_errors_name_the_file_and_the_fix(tiny: LLM, tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="window is 1024 tokens; the model's context is 512"):
        Perplexity(window=1024).items(None, tiny)
    with pytest.raises(DataError, match=r"no .*wiki\.test\.raw: give --data DIR"):
        Perplexity(text="wikitext-2").items(tmp_path, tiny)
    with pytest.raises(DataError, match=r"absent\.txt cannot be read"):
        Perplexity(text=str(tmp_path / "absent.txt")).items(None, tiny)
    (tmp_path / "short.txt").write_text("the end")
    with pytest.raises(DataError, match=r"short\.txt has \d+ tokens, fewer than one window of 512"):
        Perplexity(text=str(tmp_path / "short.txt")).items(None, tiny)


def test_drift_finds_where_two_models_part(tiny: LLM, other: LLM) -> None:
    measure = Drift(tokens=80, openers=2)
    items = measure.items(None, tiny)
    same, _ = measure.run(tiny, tiny, items)
    assert (same["first_divergence"], same["kl"], same["same"]) == (80, 0, 1)
    assert (same["tokens_0_64"], same["tokens_64_256"]) == (64, 16)
    for record in measure.run(other, tiny, items):
        assert record["first_divergence"] < 5
        assert record["kl"] > 0.1


def test_repetition() -> None:
    assert repetition(range(20)) == 0
    assert repetition([1, 2, 3, 4] * 2) == pytest.approx(1 / 5)
    assert repetition([1] * 103) == pytest.approx(0.99)
    assert repetition([1, 2]) == 0

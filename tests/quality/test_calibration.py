"""What matrices are fitted to: the inputs of the decode positions, and of no other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from narrows import LLM
from narrows.checkpoints import open_checkpoint
from narrows.compress.base import CompressError
from narrows.compress.hessians import HEAD, Hessian, collect, passes, width
from narrows.compress.sequences import Calibration, Sequence, batches, read_prompts, sequences
from narrows.kv.pool import KvPool
from narrows.models import declare
from narrows.ref import model as ref
from narrows.weights.load import read_matrix, to_floats

INPUTS = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, HEAD)]


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> LLM:
    return LLM(tiny_path, cache=False, num_threads=2)


def ignore(done: int) -> None:
    pass


def tensors_of(path: Path) -> tuple[Any, dict[str, np.ndarray]]:
    ckpt = open_checkpoint(path)
    spec, sources = declare(ckpt)
    return spec, {
        name: read_matrix(ckpt, s) if len(s.shape) == 2 else to_floats(ckpt.raw(s.name), ckpt.tensors[s.name].dtype)
        for name, s in sources.items()
    }


def reference(spec: Any, tensors: Mapping[str, np.ndarray], tokens: list[int]) -> dict[tuple[int, int], np.ndarray]:
    """The inputs of every matrix [T, width] by plain numpy."""
    x, found = tensors["embed"][tokens].astype(np.float64), {}
    for i in range(spec.num_layers):
        layer = {k.rsplit(".", 1)[1]: v.astype(np.float64) for k, v in tensors.items() if k.startswith(f"layers.{i}.")}
        rotation = ref.rope_angles(spec.ropes[spec.layer_rope[i]], np.arange(len(tokens)), np.float64)
        h = found[i, 0] = ref.rms_norm(x, layer["attn_norm"], spec.norm_eps)
        mixed = ref.attention(spec, layer | {"o": np.eye(layer["o"].shape[1])}, h, rotation, 0, lambda entries: entries)
        found[i, 1] = mixed
        x = x + mixed @ layer["o"].T
        h = found[i, 2] = ref.rms_norm(x, layer["ffn_norm"], spec.norm_eps)
        found[i, 3] = ref.silu(h @ layer["gate"].T) * (h @ layer["up"].T)
        x = x + found[i, 3] @ layer["down"].T
    found[spec.num_layers, HEAD] = ref.rms_norm(x, tensors["norm"].astype(np.float64), spec.norm_eps)
    return found


def test_hessians_are_those_of_plain_numpy_over_decode_positions(llm: LLM, tiny_path: Path) -> None:
    rng = np.random.default_rng(0)
    chosen = [Sequence(rng.integers(256, size=n).tolist(), first) for n, first in ((40, 12), (100, 64), (9, 8))]
    sums = collect(llm, chosen, INPUTS, ignore)
    spec, tensors = tensors_of(tiny_path)
    inputs = [reference(spec, tensors, s.tokens) for s in chosen]
    for key in INPUTS:
        x = np.concatenate([found[key][s.first :] for found, s in zip(inputs, chosen, strict=True)])
        expected = 2 / len(x) * x.T @ x
        assert sums[key].count == len(x) == 65
        error = np.abs(sums[key].finish() - expected).max() / np.abs(expected).max()
        assert error < 0.02, key  # keys and values are kept in bf16
    llm.engine.check()


def test_what_is_read_with_the_prompt_does_not_get_in() -> None:
    """Every input at a position of the prompt is NaN, that of the last one too."""
    spec = SimpleNamespace(num_layers=1, hidden_size=8, num_heads=2, head_dim=4, ffn_size=12)
    chosen = [Sequence([*range(n)], first) for n, first in ((30, 10), (20, 19), (5, 1))]
    prompt = np.concatenate([np.arange(len(s.tokens)) < s.first for s in chosen])

    def inputs(batch: Any, wanted: Any) -> list[np.ndarray]:
        assert len(batch.tokens) == len(prompt)
        rows = []
        for _, which in wanted:
            x = np.random.default_rng(which).standard_normal((len(prompt), width(spec, which))).astype(np.float32)  # type: ignore[arg-type]
            x[prompt] = np.nan
            rows.append(x[batch.logit_rows])
        return rows

    pool = KvPool(8, 64, identity="", codec="")
    fake = SimpleNamespace(
        loaded=SimpleNamespace(spec=spec, model=SimpleNamespace(inputs=inputs)), engine=SimpleNamespace(pool=pool)
    )
    sums = collect(fake, chosen, [(0, which) for which in range(HEAD)], ignore)  # type: ignore[arg-type]
    for total in sums.values():
        assert total.count == 25
        assert np.isfinite(total.finish()).all()
    assert pool.num_free == 8


def test_rows_of_an_answer_are_its_tokens_but_the_last(llm: LLM, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the cat\nin the hat\n")
    plan = Calibration(tokens=100, length=24, prompts=prompts, raw=True)
    store = tmp_path / "store.jsonl"
    chosen = sequences(llm, plan, store, ignore)
    assert sum(s.num_rows for s in chosen) == 100
    asked = read_prompts(llm, prompts, raw=True)
    for i, s in enumerate(chosen[:-1]):
        prompt = asked[i % 2]
        assert s.first == len(prompt)
        assert s.tokens[: s.first] == prompt
        assert s.num_rows <= 23  # the last of 24 is never read
    whole = sequences(llm, Calibration("prompts+generated", 100, 24, prompts=prompts, raw=True), store, ignore)
    assert [s.first for s in whole] == [0] * len(whole)
    assert whole[0].tokens == chosen[0].tokens
    assert sum(s.num_rows for s in whole) == 100


def test_samples_go_on_from_what_is_stored(llm: LLM, tmp_path: Path) -> None:
    plan, store = Calibration(tokens=300, length=32), tmp_path / "store.jsonl"
    whole = sequences(llm, plan, store, ignore)
    lines = store.read_text().splitlines(keepends=True)
    store.write_text("".join(lines[:5]) + lines[5][:10])  # stopped in the middle of a line
    assert sequences(llm, plan, store, ignore) == whole
    assert len({tuple(s.tokens[s.first :]) for s in whole}) > 1
    assert sequences(llm, Calibration(tokens=300, length=32, seed=1), tmp_path / "other.jsonl", ignore) != whole


def test_text_is_cut_into_windows_that_the_seed_draws(llm: LLM, tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text("the cat in the hat sat on a mat, he said. " * 40)
    plan = Calibration("text", 200, 64, text=text)
    chosen = sequences(llm, plan, tmp_path / "none", ignore)
    assert [s.num_rows for s in chosen] == [64, 64, 64, 8]
    assert all(s.first == 0 for s in chosen)
    assert sequences(llm, plan, tmp_path / "none", ignore) == chosen
    with pytest.raises(CompressError, match="ask for fewer"):
        sequences(llm, Calibration("text", 1 << 20, 64, text=text), tmp_path / "none", ignore)


def test_prompts_come_as_lines_or_json(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "the cat"}\n\n{"turns": ["in the hat", "on the mat"]}\n{"text": "a", "id": 1}\n')
    encode = llm.tokenizer.encode
    assert read_prompts(llm, path, raw=True) == [encode(text) for text in ("the cat", "in the hat", "a")]
    assert read_prompts(llm, path)[0] == llm.chat_template.encode([{"role": "user", "content": "the cat"}])
    for content, problem in (("", "no prompts"), ('{"x": 1}\n', "line 1"), ("not json\n", "line 1")):
        path.write_text(content)
        with pytest.raises(CompressError, match=problem):
            read_prompts(llm, path)
    with pytest.raises(CompressError, match="cannot be read"):
        read_prompts(llm, tmp_path / "missing.txt")
    long = tmp_path / "long.txt"
    long.write_text("cat " * 600)
    with pytest.raises(CompressError, match=r"line 1: .* leave no room"):
        read_prompts(llm, long, raw=True)


def test_bad_calibrations_are_refused() -> None:
    for change, problem in (
        ({"source": "c4"}, "prompts\\+generated"),
        ({"source": "text"}, "--text"),
        ({"tokens": 0}, "--tokens"),
        ({"length": 1}, "--length"),
    ):
        with pytest.raises(CompressError, match=problem):
            Calibration(**change)


def test_sums_in_tiles_are_the_product() -> None:
    x = np.random.default_rng(0).standard_normal((70, 1100)).astype(np.float32)
    total = Hessian(1100)
    total.add(x[:30])
    total.add(x[30:])
    np.testing.assert_allclose(total.finish(), 2 / 70 * x.T @ x, atol=1e-4)


def test_layers_are_grouped_by_the_memory_there_is() -> None:
    spec: Any = SimpleNamespace(hidden_size=1536, num_heads=12, head_dim=128, ffn_size=8960)
    groups = passes(spec, range(28), 4 << 30)
    assert [layer for group in groups for layer in group] == list(range(28))
    assert 2 <= len(groups) <= 3
    assert len(passes(spec, range(28), 8 << 30)) == 1  # one triangle of each
    assert passes(spec, range(28), 1) == [[i] for i in range(28)]
    assert passes(spec, range(28), 1 << 40) == [list(range(28))]
    assert passes(spec, [], 1) == []


def test_batches_hold_whole_sequences() -> None:
    chosen = [Sequence([0] * n, 0) for n in (10, 20, 600, 5, 5)]
    assert [[len(s.tokens) for s in batch] for batch in batches(chosen, 32)] == [[10, 20], [600], [5, 5]]
    assert list(batches([], 32)) == []

"""Training of heads: what is learned is what runs, a stopped run goes on to the same result, mistakes are named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_heads import random_weights, write_tiny_head
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from narrows import LLM, SamplingParams  # noqa: E402
from narrows.checkpoints import open_checkpoint  # noqa: E402
from narrows.checkpoints.base import CheckpointError  # noqa: E402
from narrows.checkpoints.head import FUSE, SCALE  # noqa: E402
from narrows.cli import app  # noqa: E402
from narrows.ref.head import head_states  # noqa: E402
from narrows.train.base import Course, Texts, TrainError  # noqa: E402
from narrows.train.loop import _step_weights  # noqa: E402
from narrows.train.network import Head  # noqa: E402
from narrows.train.run import Training  # noqa: E402

TEXTS = Texts(tokens=1500, length=48)
COURSE = {"epochs": 1, "vocab": 120, "batch": 128}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NARROWS_MODELS", raising=False)


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> LLM:
    torch.set_num_threads(1)
    return LLM(tiny_path, num_threads=1, cache=False)


@contextmanager
def untracked(label: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda done: None


def training(llm: LLM, out: Path, begin: Path | None = None, track: Any = untracked, **course: Any) -> Training:
    ckpt = open_checkpoint(llm.loaded.path)
    return Training(llm, "tiny", ckpt, out, TEXTS, Course(**{**COURSE, **course}), begin, track)


def test_the_unrolling_is_a_draft_on_own_states(llm: LLM) -> None:
    """Every row of every step is what the oracle gives when the head drafts up to it, token by token."""
    spec, rng = llm.loaded.spec, np.random.default_rng(1)
    weights = random_weights(spec)
    embeds, states = rng.standard_normal((9, 64)), rng.standard_normal((9, 192))
    with torch.no_grad():
        net = Head(spec, weights).double()
        steps = [x[0].numpy() for x in net(torch.tensor(embeds)[None], torch.tensor(states)[None], 3)]
    fused = (states * weights.pop(SCALE)) @ weights[FUSE].T.astype(np.float64)
    targets = np.concatenate([np.zeros((1, 64)), fused[:-1]])
    for row in range(9):
        for step in range(min(3, row + 1)):
            features = targets[: row + 1].copy()
            for own in range(row - step + 1, row + 1):
                features[own] = head_states(spec, weights, embeds[:own], features[:own])[-1]
            want = head_states(spec, weights, embeds[: row + 1], features)[-1]
            assert np.abs(steps[step][row] - want).max() < 1e-5  # the angles of the rotation are float32


def test_a_trained_head_drafts_better_and_changes_no_token(llm: LLM, tiny_path: Path, tmp_path: Path) -> None:
    info = training(llm, tmp_path / "head", epochs=6, rate=2e-3).run()
    history = json.loads((tmp_path / "head" / "training.json").read_text())
    assert history["tests"][-1]["test_loss"] < history["tests"][0]["test_loss"]
    assert history["loss"][-1] < history["loss"][0]
    assert info["tokens"] == 1500
    assert sorted(p.name for p in (tmp_path / "head").iterdir()) == ["head.json", "model.safetensors", "training.json"]
    assert not (tmp_path / "head.partial").exists()

    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = ["the cat", "in", "Explain the tides to someone who has never heard of it."]
    plain = [out.outputs[0].token_ids for out in llm.generate(prompts, params)]
    for draft in (f"head:name={tmp_path / 'head'}", f"looped:base=(head:name={tmp_path / 'head'},k=2),gate=-4"):
        drafting = LLM(tiny_path, f"draft={draft} pace=fixed", num_threads=1, cache=False)
        assert [out.outputs[0].token_ids for out in drafting.generate(prompts, params)] == plain
        assert drafting.ledger.drafts.num_drafts > 0


def test_a_stopped_training_goes_on_to_the_same_head(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narrows.train.loop.EVERY", 2)
    training(llm, tmp_path / "whole").run()
    left = 5

    @contextmanager
    def stopping(label: str, total: int) -> Iterator[Callable[[int], None]]:
        def advance(done: int) -> None:
            nonlocal left
            left -= done if label == "training" else 0
            if left < 0:
                raise KeyboardInterrupt

        yield advance

    with pytest.raises(KeyboardInterrupt):
        training(llm, tmp_path / "stopped", track=stopping).run()
    assert (tmp_path / "stopped.partial" / "checkpoint.pt").exists()
    training(llm, tmp_path / "stopped").run()
    made = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert made[0] == made[1]
    whole, stopped = (json.loads((tmp_path / n / "training.json").read_text()) for n in ("whole", "stopped"))
    assert (stopped["loss"], stopped["tests"]) == (whole["loss"], whole["tests"])


def test_loops_go_on_from_a_head_and_keep_its_vocabulary(llm: LLM, tiny_path: Path, tmp_path: Path) -> None:
    first = write_tiny_head(tmp_path / "first", tiny_path, llm.loaded.spec)
    info = training(llm, tmp_path / "loops", first, loops=3, depth=2).run()
    assert info["from"] == "first"
    assert len(info["right"]) == 6
    assert info["layers"] == [0, 1, 2]


def test_a_narrower_head_is_trained_read_and_gone_on_from(llm: LLM, tiny_path: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="--ffn is 4096; it must be at most 96"):
        training(llm, tmp_path / "wide", ffn=4096)
    training(llm, tmp_path / "head", ffn=64).run()
    assert json.loads((tmp_path / "head" / "head.json").read_text())["matrices"]["layers.0.gate"]["shape"] == [64, 64]
    wide = write_tiny_head(tmp_path / "wide", tiny_path, llm.loaded.spec)
    with pytest.raises(TrainError, match="--ffn is 64, but that of the head to go on from is 96"):
        training(llm, tmp_path / "loops", wide, loops=2, depth=1, ffn=64)
    training(llm, tmp_path / "loops", tmp_path / "head", loops=2, depth=1).run()
    prompts, params = ["a b c", "d e"], SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    plain = [out.outputs[0].token_ids for out in llm.generate(prompts, params)]
    for name in ("head", "loops"):
        drafting = LLM(tiny_path, f"draft=head:name={tmp_path / name} pace=fixed", num_threads=1, cache=False)
        assert [out.outputs[0].token_ids for out in drafting.generate(prompts, params)] == plain
        assert drafting.ledger.drafts.num_drafts > 0


def test_loops_weigh_the_first_and_the_last_stage() -> None:
    course = Course(depth=2, loops=3)
    drawn = {tuple(_step_weights(course, n, 40)) for n in range(40)}
    assert drawn == {(0.25, 0.25, 0.25, 0.25), (0.25, 0.25, 0.0, 0.0, 0.25, 0.25)}
    assert _step_weights(course, 3, 40) == _step_weights(course, 3, 40)


def test_a_head_learns_the_first_token_first() -> None:
    course = Course(depth=3)
    assert [len(_step_weights(course, n, 10)) for n in range(10)] == [1] * 6 + [3] * 4
    assert sum(_step_weights(course, 9, 10)) == pytest.approx(1)


def test_a_head_of_another_model_is_refused(
    llm: LLM, tiny_gguf: Callable[..., Path], tiny_path: Path, tmp_path: Path
) -> None:
    other = tiny_gguf(seed=9)
    head = write_tiny_head(tmp_path / "other", other, llm.loaded.spec)
    with pytest.raises(TrainError, match=r"--from .*other was not trained for tiny.gguf"):
        training(llm, tmp_path / "out", head)
    with pytest.raises(CheckpointError, match=r"head .*other was trained for tiny.gguf .*`narrows train head`"):
        LLM(tiny_path, f"draft=head:name={head}", num_threads=1, cache=False)


def test_another_course_does_not_go_on_with_the_work(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "head.partial").mkdir()
    (tmp_path / "head.partial" / "settings.json").write_text(json.dumps({"course": {"epochs": 9}}))
    with pytest.raises(TrainError, match=r"holds a training with other .*course.*choose another --out"):
        training(llm, tmp_path / "head").run()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "many"], "--tokens is 'many'"),
        (["--ffn", "100"], "--ffn is 100; it must be a multiple of 64"),
        (["--tokens", "10"], "--tokens is 10; it must be between 1000"),
        (["--data", "nothing.txt"], "--data nothing.txt is not there"),
        (["--loops", "3"], "--loops continues a trained head: name it with --from"),
        (["--loops", "9", "--from", "x"], "--loops is 9; it must be between 1 and 4"),
        (["--depth", "0"], "--depth is 0"),
        (["--from", "nowhere"], "--from: there is no such folder"),
        (["--out", "."], "exists already"),
    ],
)
def test_mistakes_are_named_before_any_work(arguments: list[str], message: str, tiny_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "head", str(tiny_path), *arguments])
    assert result.exit_code != 0
    assert message in str(result.exception)


def test_without_torch_the_extra_is_named(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    result = CliRunner().invoke(app, ["train", "head", str(tiny_path)])
    assert "pip install 'narrows[train]'" in str(result.exception)

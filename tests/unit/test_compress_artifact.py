"""Compressed models on disk: what is written is what runs, whole or not at all, on the right parent."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from narrows import LLM, SamplingParams
from narrows.checkpoints import open_checkpoint
from narrows.checkpoints.base import CheckpointError
from narrows.checkpoints.compressed import open_compressed, pack_bits, unpack_bits
from narrows.cli import app
from narrows.compress import run as driver
from narrows.compress.base import CompressError
from narrows.compress.grid import Grid
from narrows.compress.pattern import Pattern
from narrows.compress.run import Compression, Recipe
from narrows.compress.sequences import Calibration
from narrows.compress.sparsegpt import SparseGPT
from narrows.compress.wanda import Wanda
from narrows.models import declare, hub
from narrows.ref import model as ref
from narrows.weights import Format, Packed, unpack
from narrows.weights.compressed import load_compressed
from narrows.weights.load import read_matrix, to_floats

PLAN = Calibration(tokens=200, length=32)
MEMORY = 1 << 30


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NARROWS_MODELS", raising=False)


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> LLM:
    return LLM(tiny_path, cache=False, num_threads=2)


def recipe(pattern: str = "2:4", bits: int = 8, **changes: Any) -> Recipe:
    return Recipe(
        **{"calibration": PLAN, "solver": SparseGPT(), "pattern": Pattern.parse(pattern), "grid": Grid(bits)} | changes
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_what_the_model_wrote_is_kept_for_other_recipes(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Compression(llm, "tiny", tmp_path / "first", recipe(), MEMORY).run()
    other = Compression(llm, "tiny", tmp_path / "fresh", recipe("4:8"), MEMORY)
    fresh = Compression(llm, "tiny", tmp_path / "other seed", recipe(calibration=replace(PLAN, seed=1)), MEMORY)
    with monkeypatch.context() as patch:
        patch.setattr(LLM, "generate", None)
        other.run()
        with pytest.raises(TypeError):  # it has to write
            fresh.run()
    shutil.rmtree(tmp_path / "cache" / "samples")
    Compression(llm, "tiny", tmp_path / "again", recipe("4:8"), MEMORY).run()
    assert contents(tmp_path / "fresh") == contents(tmp_path / "again")


def test_what_matrices_meet_is_kept_for_other_recipes_that_ask_for_it(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compress(name: str, made: Recipe, inputs: Path | None) -> dict[str, bytes]:
        Compression(llm, "tiny", tmp_path / name, made, MEMORY, inputs=inputs).run()
        return contents(tmp_path / name)

    plain = compress("plain", recipe("4:8"), None)
    compress("first", recipe(), tmp_path / "inputs")
    with monkeypatch.context() as patch:
        patch.setattr(driver, "collect", None)
        assert compress("fresh", recipe("4:8"), tmp_path / "inputs") == plain
        with pytest.raises(TypeError):  # it has to read
            compress("other tokens", recipe(calibration=replace(PLAN, tokens=PLAN.tokens - 1)), tmp_path / "inputs")
    next((tmp_path / "inputs").rglob("*.npy")).unlink()
    assert compress("again", recipe("4:8"), tmp_path / "inputs") == plain


@pytest.mark.parametrize(
    ("made", "head"),
    [(recipe(), False), (recipe("unstructured", 4), True), (recipe("dense", 16, solver=Wanda()), False)],
    ids=["2:4 int8", "unstructured int4 head", "dense bf16"],
)
def test_a_compressed_model_computes_with_what_was_solved(
    llm: LLM, tiny_path: Path, tmp_path: Path, made: Recipe, head: bool
) -> None:
    made = Recipe(**{f: getattr(made, f) for f in made.__slots__} | {"head": head})
    out = tmp_path / "small"
    info = Compression(llm, "tiny", out, made, MEMORY).run()
    assert sorted(p.name for p in out.iterdir()) == ["model.safetensors", "narrows.json"]
    assert not list(tmp_path.glob("*.partial"))
    assert info["parent"]["file"] == tiny_path.name
    assert len(info["matrices"]) == 14 + head

    ckpt = open_checkpoint(tiny_path)
    spec, sources = declare(ckpt)
    tensors = {
        n: read_matrix(ckpt, s) if len(s.shape) == 2 else to_floats(ckpt.raw(s.name), "F32") for n, s in sources.items()
    }
    compressed = open_compressed(out)
    forms = {form: load_compressed(compressed, form) for form in ("sparse", "dense", "auto")}
    for name, packed in forms["sparse"].items():
        mask, codes, scales = compressed.matrix(name)
        wide = np.repeat(scales.astype(np.float32), 32, axis=1)[:, : mask.shape[1]] if scales.size else np.float32(1)
        expected = made.grid.decode(codes, wide) * mask
        assert packed.format.sparse == (made.pattern.ratio > 0)
        assert not forms["dense"][name].format.sparse
        for form in forms.values():
            np.testing.assert_array_equal(unpack(form[name]), expected)
        error = ((expected - tensors[name]) ** 2).sum() / (tensors[name] ** 2).sum()
        assert error < (1e-4 if str(made.pattern) == "dense" else 0.9)
        tensors[name] = expected
    pruned = LLM(out, num_threads=2)
    prompt = list(range(20, 40))
    whole = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    ids = [
        LLM(out, weights=form, num_threads=2).generate([prompt], whole)[0].outputs[0].token_ids
        for form in ("sparse", "dense")
    ]
    assert ids[0] == ids[1]
    answer = pruned.generate([prompt], SamplingParams(temperature=0, max_tokens=1, logprobs=5))[0].outputs[0]
    logits = ref.forward(spec, tensors, prompt, dtype=np.float64)[-1]
    logprobs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert answer.logprobs is not None
    for token, value in answer.logprobs[0].top:
        assert value == pytest.approx(logprobs[token], abs=0.02)


def test_a_run_that_was_stopped_gives_the_same_bytes(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe("unstructured", 4, by_loss=True)
    Compression(llm, "tiny", tmp_path / "a", made, MEMORY).run()
    count = 0

    def stop(*args: Any) -> float:
        nonlocal count
        count += 1
        if count == 10:  # within the second layer
            raise KeyboardInterrupt
        return loss(*args)

    loss = driver.relative_loss
    monkeypatch.setattr(driver, "relative_loss", stop)
    with pytest.raises(KeyboardInterrupt):
        Compression(llm, "tiny", tmp_path / "b", made, MEMORY).run()
    assert not (tmp_path / "b").exists()
    with pytest.raises(CompressError, match="another bits"):
        Compression(llm, "tiny", tmp_path / "b", recipe("unstructured", 8, by_loss=True), MEMORY)
    with pytest.raises(ValueError):
        hub.resolve(tmp_path / "b.partial")
    Compression(llm, "tiny", tmp_path / "b", made, 1).run()  # a layer at a time
    assert count == 10 + 7
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_shares_by_loss_add_up(llm: LLM, tmp_path: Path) -> None:
    info = Compression(llm, "tiny", tmp_path / "a", recipe("unstructured", by_loss=True), MEMORY).run()
    sizes = [np.prod(m["shape"]) for m in info["matrices"].values()]
    ratios = [m["ratio"] for m in info["matrices"].values()]
    assert np.average(ratios, weights=sizes) == pytest.approx(0.5, abs=0.002)
    assert max(ratios) - min(ratios) > 0.05


def test_the_parent_is_recognised(
    tiny_gguf: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, out = shutil.copy(tiny_gguf(), tmp_path / "parent.gguf"), tmp_path / "small"
    Compression(LLM(parent, cache=False), "parent", out, recipe(), MEMORY).run()
    assert hub.parent(out) == parent
    assert hub.parent(parent) == parent
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("NARROWS_MODELS", str(shelf))
    moved = Path(shutil.move(parent, shelf / "parent.gguf"))
    assert hub.parent(out) == moved
    moved.rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(CheckpointError, match=r"parent\.gguf .*it is not at .*NARROWS_MODELS"):
        LLM(out)
    shutil.copy(tiny_gguf(seed=1), moved)
    with pytest.raises(CheckpointError, match="is another model"):
        LLM(out)
    shutil.copytree(out, shelf / "small")
    listed = {m.name: m for m in hub.list_models()}
    assert listed["small"].problem is not None
    shutil.copy(tmp_path / "elsewhere.gguf", moved)
    listed = {m.name: m for m in hub.list_models()}
    assert listed["small"].problem is None
    assert "2:4" in listed["small"].family
    assert hub.resolve("small") == shelf / "small"
    with pytest.raises(ValueError, match="weights"):
        LLM(out, weights="int4")


def test_what_is_written_by_half_or_damaged_is_no_model(llm: LLM, tmp_path: Path) -> None:
    out = tmp_path / "small"
    Compression(llm, "tiny", out, recipe(), MEMORY).run()
    whole = contents(out)
    info = json.loads(whole["narrows.json"])
    for change in ({"version": 99}, {"bits": 7}, {"matrices": {}}, {"matrices": {"layers.0.q": {"shape": [0, 4]}}}):
        (out / "narrows.json").write_text(json.dumps(info | change))
        with pytest.raises(CheckpointError, match="compress the model again"):
            LLM(out)
    (out / "narrows.json").write_text(json.dumps(info | {"parent": {"file": "x"}}))
    with pytest.raises(CheckpointError, match="parent has no"):
        LLM(out)
    (out / "narrows.json").write_bytes(whole["narrows.json"])
    (out / "model.safetensors").write_bytes(whole["model.safetensors"][:-100])
    with pytest.raises(CheckpointError, match=r"truncated|data_offsets"):
        LLM(out)


def test_a_full_disk_leaves_nothing_half_written(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "small"
    job = Compression(llm, "tiny", out, recipe(), MEMORY)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CompressError, match="No space left on device; make room"):
        job.run()
    assert not out.exists()
    assert not list(job.work.glob("layer*")) + list(job.work.glob("*.tmp"))


def test_what_cannot_be_done_is_said_before_any_work(llm: LLM, tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="unstructured"):
        Compression(llm, "tiny", tmp_path / "a", recipe("2:4", by_loss=True), MEMORY)
    (tmp_path / "there").mkdir()
    with pytest.raises(CompressError, match="exists already"):
        Compression(llm, "tiny", tmp_path / "there", recipe(), MEMORY)
    narrow = LLM(tiny_gguf(hidden=48, heads=3, kv_heads=3), cache=False)
    with pytest.raises(ValueError, match=r"'blk\.0\.attn_q\.weight' has 48 inputs, which --pattern 16:32"):
        Compression(narrow, "tiny", tmp_path / "b", recipe("16:32"), MEMORY)
    (tmp_path / "file").write_text("")
    with pytest.raises(CompressError, match="cannot write"):
        Compression(llm, "tiny", tmp_path / "file" / "c", recipe(), MEMORY)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "cache") == ["file", "there"]


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize(("group", "shape"), [(32, (40, 160)), (64, (16, 96)), (64, (17, 256))])
def test_codes_are_packed_as_they_are(bits: int, group: int, shape: tuple[int, int]) -> None:
    from narrows.weights.compressed import pack_codes

    rng = np.random.default_rng(bits)
    codes = rng.integers(1 << bits, size=shape, dtype=np.uint8)
    scales = rng.standard_normal((shape[0], -(-shape[1] // group))).astype(np.float16)
    fmt = Format(bits, group)
    packed = pack_codes(codes, scales, fmt)
    assert packed.size == fmt.packed_bytes(*shape)
    wide = np.repeat(scales.astype(np.float32), group, axis=1)[:, : shape[1]]
    expected = wide * (codes.astype(np.float32) - (1 << (bits - 1)))
    np.testing.assert_array_equal(unpack(Packed(fmt, *shape, packed.reshape(-1))), expected)
    np.testing.assert_array_equal(unpack_bits(pack_bits(codes.reshape(-1), bits), bits, codes.size), codes.reshape(-1))


def test_the_command_compresses_and_diagnoses(tiny_path: Path, tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text("the cat in the hat sat on a mat, he said. " * 60)
    runner, out = CliRunner(), tmp_path / "small"
    common = ["compress", str(tiny_path), "--tokens", "200", "--length", "32"]
    done = runner.invoke(app, [*common, "--pattern", "2:4", "--bits", "4", "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["path"] == str(out)
    assert result["pattern"] == "2:4"
    assert 0 < result["loss"] < 1
    again = runner.invoke(app, [*common, "--out", str(out)])
    assert isinstance(again.exception, ValueError)
    assert "exists already" in str(again.exception)
    picture = tmp_path / "eps.png"
    pytest.importorskip("matplotlib")
    shown = runner.invoke(app, [*common, "--diagnose", "--text", str(text), "--out", str(picture)])
    assert shown.exit_code == 0, shown.output
    assert picture.stat().st_size > 1000
    assert "generated text is nearer to decoding than text in" in shown.stdout.replace("\n", " ")
    assert len(json.loads(picture.with_suffix(".json").read_text())["rows"]) == 8


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--tokens", "many"], "--tokens"),
        (["--pattern", "3:5"], "--pattern '3:5'"),
        (["--calibrate", "text"], "--text"),
        (["--allocate", "even"], "uniform or loss"),
        (["--include", "embed"], "only head"),
        (["--solver", "sparsgpt"], "sparsegpt"),
        (["--memory", "-1"], "--memory"),
        (["--bits", "7"], "--bits"),
    ],
)
def test_bad_flags_are_named_before_a_model_is_loaded(flags: list[str], problem: str) -> None:
    done = CliRunner().invoke(app, ["compress", "no-such-model", *flags])
    assert isinstance(done.exception, ValueError)
    assert problem in str(done.exception)


def test_how_a_compressed_model_is_read_is_asked_in_its_own_words(llm: LLM, tiny_path: Path, tmp_path: Path) -> None:
    Compression(llm, "tiny", tmp_path / "a", recipe(), MEMORY).run()
    with pytest.raises(ValueError, match="may be auto, sparse, dense, not 'int4'"):
        LLM(tmp_path / "a", weights="int4")
    with pytest.raises(ValueError, match="a way to read a compressed model"):
        LLM(tiny_path, weights="sparse", cache=False)


def test_packed_weights_of_a_compressed_model_are_kept(llm: LLM, tmp_path: Path) -> None:
    Compression(llm, "tiny", tmp_path / "a", recipe(), MEMORY).run()
    model = open_compressed(tmp_path / "a")
    first = load_compressed(model, "sparse")
    (kept,) = (tmp_path / "cache" / "packed").glob("a-*.packed")
    state = kept.stat()
    again = load_compressed(model, "sparse")
    assert kept.stat().st_mtime_ns == state.st_mtime_ns
    assert all((first[name].data == again[name].data).all() for name in first)
    kept.write_bytes(kept.read_bytes()[:-1])
    assert all((first[n].data == m.data).all() for n, m in load_compressed(model, "sparse").items())
    assert kept.stat().st_size == state.st_size

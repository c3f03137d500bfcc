"""Trained heads on disk: found by their parent, refused by name when they do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_heads import write_tiny_head
from typer.testing import CliRunner

from narrows import LLM, SamplingParams, drafts
from narrows.checkpoints.base import CheckpointError
from narrows.checkpoints.head import pack_ids, unpack_ids
from narrows.cli import app
from narrows.methods import StackError

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models directory; nothing is shipped."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("NARROWS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NARROWS_MODELS", str(folder))
    monkeypatch.setattr(drafts, "SHIPPED_HEADS", tmp_path / "shipped")
    return folder


@pytest.fixture(scope="module")
def plain(tiny_path: Path) -> LLM:
    return LLM(tiny_path, num_threads=1, cache=False)


@pytest.fixture
def head(plain: LLM, tiny_path: Path, tmp_path: Path) -> Path:
    return write_tiny_head(tmp_path / "head", tiny_path, plain.loaded.spec)


def drafting(path: Path, draft: str) -> LLM:
    return LLM(path, f"draft={draft} pace=fixed", num_threads=1, cache=False)


def change(head: Path, **fields: Any) -> None:
    info = json.loads((head / "head.json").read_text())
    (head / "head.json").write_text(json.dumps(info | fields))


def test_a_vocabulary_is_a_bit_a_token() -> None:
    ids = [0, 7, 8, 30]
    assert pack_ids(ids, 31).tolist() == [0x81, 0x01, 0, 0x40]
    assert unpack_ids(pack_ids(ids, 31), 31).tolist() == ids


def test_a_head_is_found_where_models_are_and_where_heads_are_shipped(
    head: Path, models: Path, plain: LLM, tiny_path: Path, tmp_path: Path
) -> None:
    want = plain.generate("the cat", PARAMS)[0].outputs[0].token_ids
    for place in (tmp_path / "shipped" / "some", models / "tiny-head"):
        shutil.copytree(head, place)
        llm = drafting(tiny_path, "head")
        assert llm.generate("the cat", PARAMS)[0].outputs[0].token_ids == want
        assert llm.ledger.drafts.num_drafts > 0
    assert drafting(tiny_path, "head:name=tiny-head").stack.draft is not None


def test_the_heads_of_other_models_are_not_found(head: Path, models: Path, tiny_gguf: Callable[..., Path]) -> None:
    shutil.copytree(head, models / "tiny-head")
    with pytest.raises(CheckpointError, match=r"there is no head for tiny.gguf: `narrows train head` trains one"):
        drafting(tiny_gguf(seed=3), "head")


def test_a_name_without_a_head(tiny_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no head 'nothing': no folder of that name with a head.json"):
        drafting(tiny_path, "head:name=nothing")


def test_a_stack_has_one_head(head: Path, tiny_path: Path, tmp_path: Path) -> None:
    shutil.copytree(head, tmp_path / "other")
    with pytest.raises(StackError, match="a stack has one head, not 2"):
        drafting(tiny_path, f"head:name={head}|head:name={tmp_path / 'other'}")


def test_a_head_counts_in_the_kv_cache(head: Path, plain: LLM, tiny_path: Path) -> None:
    """Two layers of the model, one of the head: two thirds of the pages."""
    sizes = [
        LLM(tiny_path, stack, num_threads=1, cache=False, kv_cache_bytes=6 << 20).engine.pool.num_pages
        for stack in ("", f"draft=head:name={head}")
    ]
    assert sizes[1] == sizes[0] * 2 // 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "narrows-compressed"}, r"kind and version are 'narrows-compressed' 1, not 'narrows-head' 1; train"),
        ({"layers": [0, 1]}, r"layers is \[0, 1\], not 3 layers of a model of 2"),
        ({"layers": [0, 1, 9]}, r"layers is \[0, 1, 9\]"),
        ({"layers": None}, r"layers is None"),
        ({"matrices": {"fuse": {"shape": [64, 64]}}}, r"its matrices have not the shapes"),
        ({"parent": None}, r"was trained for unknown"),
    ],
)
def test_a_damaged_record_is_named(fields: dict[str, Any], message: str, head: Path, tiny_path: Path) -> None:
    change(head, **fields)
    with pytest.raises(CheckpointError, match=message):
        drafting(tiny_path, f"head:name={head}")


def test_a_truncated_file_is_named(head: Path, tiny_path: Path) -> None:
    weights = head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model.safetensors: tensor .*data_offsets"):
        drafting(tiny_path, f"head:name={head}")


def test_settings_of_the_drafter_are_checked() -> None:
    for line, message in (("head:k=0", "k is 0; it must be between 1 and 64"), ("head:name=", "name is empty")):
        with pytest.raises(StackError, match=message):
            LLM("unused", f"draft={line}")


def test_drafts_are_measured_beside_plain_decoding(head: Path, tiny_path: Path, tmp_path: Path) -> None:
    arguments = ["--draft", f"head:name={head}", "--samples", "2", "--tokens", "12", "--batch", "1,2"]
    arguments += ["-t", "1", "--stack", "pace=fixed"]
    out = tmp_path / "draft.json"
    result = CliRunner().invoke(app, ["bench", "draft", str(tiny_path), *arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    plain, drafted, *together = json.loads(out.read_text())["rows"]
    assert [(row["draft"][:4], row["batch"], row["num_tokens"], row["same"]) for row in together] == [
        ("none", 2, 24, 1.0),
        ("head", 2, 24, 1.0),
    ]
    assert (plain["draft"], plain["acceptance_length"], plain["plain_ratio"]["median"]) == ("none", 1.0, 1.0)
    assert plain["same"] == drafted["same"] == 1.0
    assert drafted["num_tokens"] == 24
    assert drafted["drafted_tokens_per_token"] > 0
    assert np.isclose(drafted["target_forwards_per_token"], 1 / drafted["acceptance_length"], atol=0.2)

"""Speculation measured by kind of prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_heads import write_tiny_head
from typer.testing import CliRunner

from narrows import LLM, SamplingParams
from narrows.cli import app
from narrows.drafters.first import First
from narrows.measure.drafts import measure
from narrows.measure.techniques import drafts
from narrows.outputs import RequestOutput
from narrows.stack import Stack


def test_ratios_are_given_by_kind_of_prompt_where_there_are_enough(tiny_path: Path, tmp_path: Path) -> None:
    kinds = ["code"] * 4 + ["rare"] + ["qa"] * 5 + ["scarce"]
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "draft.json"
    lines = [json.dumps({"category": kind, "turns": [f"a cab {i}"]}) for i, kind in enumerate(kinds)]
    prompts.write_text("\n\n".join(lines))
    options = ["--draft", "ngram", "--prompts", prompts, "--samples", 11, "--tokens", 4, "-t", 1, "--batch", "1,4"]
    result = CliRunner().invoke(app, [str(word) for word in ("bench", "draft", tiny_path, *options, "--out", out)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    plain, drafted, *together = found["rows"]
    assert list(drafted["by_kind"]) == ["code", "other", "qa"]
    assert all(value["median"] == 1 for value in plain["by_kind"].values())
    assert not any("by_kind" in row for row in together)
    drafted["by_kind"] |= {"qa": {"median": 1.234, "min": 1.0, "max": 2.0}}
    page = drafts([found | {"stem": "draft-x"}])
    assert "| by kind of prompt | temperature | code | other | qa |" in page
    assert "| 1.23x |\n" in page


def test_prompts_without_kinds_have_no_such_figures(tiny_path: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "draft.json"
    prompts.write_text("a\nb\nc\nd\n")
    options = ["--draft", "ngram", "--prompts", prompts, "--tokens", 4, "-t", 1]
    result = CliRunner().invoke(app, [str(word) for word in ("bench", "draft", tiny_path, *options, "--out", out)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert not any("by_kind" in row for row in found["rows"])
    assert "by kind" not in drafts([found | {"stem": "draft-x"}])


def test_each_temperature_has_figures_of_its_own(tiny_path: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "draft.json"
    prompts.write_text("a cab\nbad face\n")
    options = ["--draft", "self:skip=0", "--prompts", prompts, "--tokens", 8, "-t", 1]
    options += ["--stack", "pace=fixed", "--temperature", 0, "--temperature", 1.5, "--out", out]
    result = CliRunner().invoke(app, [str(word) for word in ("bench", "draft", tiny_path, *options)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    named = [(row["draft"], row["temperature"], row["num_tokens"], row["same"]) for row in found["rows"]]
    assert named == [(d, t, 16, 1.0) for t in (0.0, 1.5) for d in ("none", "self:skip=0")]
    for row in found["rows"]:
        assert row["total_ratio"] > 0
        assert row["target_forwards_per_token"] <= 1
    assert f"| 1.5 | {found['rows'][3]['total_ratio']:.2f}x |" in drafts([found | {"stem": "draft-x"}])


@pytest.fixture
def plain(tiny_path: Path) -> LLM:
    return LLM(tiny_path, num_threads=1, cache=False)


def test_heads_and_their_states_are_of_no_concern_to_what_drafts_without_them(
    plain: LLM, tiny_path: Path, tmp_path: Path
) -> None:
    """Neither plain decoding nor other drafts pay for a head that is loaded beside."""
    head = write_tiny_head(tmp_path / "head", tiny_path, plain.loaded.spec)
    llm = LLM(tiny_path, f"draft=head:name={head}|ngram", num_threads=1, cache=False)
    seen: list[tuple[bool, int]] = []
    generate = llm.generate

    def noting(prompts: list[list[int]], params: SamplingParams) -> list[RequestOutput]:
        speculation = llm.engine.speculation
        seen.append((bool(llm.loaded.model.hidden_of), len(speculation.readers if speculation else ())))
        return generate(prompts, params)

    llm.generate = noting  # type: ignore[method-assign]
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cab\na bad cab\n")
    params = [SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)]
    list(measure(lambda _: llm, "", ["ngram", f"head:name={head}"], prompts, 2, params))
    reading = [(True, 1), (True, 1)]
    plain, ngram, drafting = (False, 0), (False, 0), (True, 1)
    assert seen == [*reading, plain, ngram, drafting, *reading, ngram, drafting, plain]  # another is first each time


def test_all_drafts_share_a_model_that_has_read_the_prompts_but_that_each_head_has_its_own(
    plain: LLM, tiny_path: Path, tmp_path: Path
) -> None:
    loaded: list[LLM] = []

    def load(stack: Stack) -> LLM:
        loaded.append(LLM(tiny_path, stack, num_threads=1))
        return loaded[-1]

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cab " * 20 + "\n" + "bad face " * 20 + "\n")
    heads = [write_tiny_head(tmp_path / name, tiny_path, plain.loaded.spec) for name in "ab"]
    own = [f"head:name={heads[0]}", "ngram", "self:skip=0", "looped:base=(self:skip=0,k=2)"]
    names = [*own, f"ngram|head:name={heads[1]}"]
    params = [SamplingParams(temperature=t, max_tokens=8, seed=0, ignore_eos=True) for t in (0.0, 1.5)]
    rows = list(measure(load, "pace=fixed", names, prompts, 2, params))
    assert [row["draft"] for row in rows] == ["none", *names] * 2
    assert all(row["same"] == 1 and row["num_tokens"] == 16 for row in rows)
    assert len(loaded) == 2
    for llm, some in zip(loaded, (own, names[-1:]), strict=True):
        assert isinstance(llm.stack.draft, First)
        assert len(llm.stack.draft.drafters) == len(some)
        engine = llm.engine
        assert not engine.requests
        engine.check()
        assert engine.ledger.num_cached > 0

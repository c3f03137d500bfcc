"""The head that comes with the package: small, for the default model, and without a trace in its answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from narrows import LLM, SamplingParams
from narrows.checkpoints.head import parent_of
from narrows.drafts import SHIPPED_HEADS

MOST_BYTES = 6_000_000
PROMPTS = ("Why is the sky blue?", "Write a Python function that adds two numbers.", "Name three rivers in Europe.")


def test_it_is_small_and_bound_to_its_model(smollm2_path: Path) -> None:
    [folder] = [p for p in SHIPPED_HEADS.iterdir() if p.is_dir()]
    assert parent_of(folder)["file"] == smollm2_path.name
    assert sum(p.stat().st_size for p in folder.iterdir()) <= MOST_BYTES


@pytest.mark.parametrize("draft", ["head", "head:leaves=3", "looped:base=(head:k=2),gate=-1"])
def test_it_drafts_for_the_default_model(
    llm: LLM, smollm2_path: Path, draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARROWS_MODELS", str(tmp_path))  # no head of the user's own comes first
    drafting = LLM(smollm2_path, f"draft={draft} pace=fixed")
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = [[{"role": "user", "content": text}] for text in PROMPTS]
    plain, drafted = (model.chat(prompts, params) for model in (llm, drafting))
    assert [a.outputs[0].token_ids for a in drafted] == [a.outputs[0].token_ids for a in plain]
    length = drafting.ledger.drafts.json()["acceptance_length"]
    assert length is not None and length > 1.15

"""Drafts and forms together: a draft that leaves the form is rejected, and the answer is that of plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from narrows import LLM, SamplingParams

pytest.importorskip("llguidance")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": 'Where, and how many? Answer like {"city": "Rome", "people": 12}, no more.'}]


@pytest.mark.parametrize("draft", ["ngram", "ngram:branches=3", "model:model={path},k=3"])
def test_drafts_change_nothing_of_a_constrained_answer(draft: str, smollm2_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, structured_outputs={"json": SCHEMA})
    plain = LLM(smollm2_path, num_threads=1).chat(ASK, params)[0].outputs[0]
    stack = f"draft={draft.format(path=smollm2_path)} pace=fixed"
    guessing = LLM(smollm2_path, stack=stack, num_threads=1)
    assert guessing.chat(ASK, params)[0].outputs[0].token_ids == plain.token_ids
    assert plain.finish_reason == "stop"
    assert guessing.ledger.drafts.num_accepted > 0

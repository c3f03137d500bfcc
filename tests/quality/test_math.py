"""GSM8K on problems made here."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fake_llm import FakeLLM

from narrows.measure.quality.base import DataError
from narrows.measure.quality.math import Gsm8k, extract


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2 + 2 = 4\n#### 1,234", "1234"),
        ("so it is \\boxed{\\$1{,}234.50}. Then 5.", "1234.5"),
        ("\\boxed{7} and \\boxed{\\text{N} = -12}", "-12"),
        ("The answer is $12.", "12"),
        ("the final answer is: **72** apples, not 3 pears", "72"),
        ("Therefore 3 + 4 = 7 apples.", "7"),
        ("#### 1. Add the numbers of apples\n3 + 4 = 7", "7"),
        ("#### 18.00 dollars", "18"),
        ("he loses -$5", "-5"),
        ("12-3", "3"),
        ("#### .5", "0.5"),
    ],
)
def test_the_number_is_found(text: str, number: str) -> None:
    assert extract(text) == Decimal(number)


def test_no_number_is_none() -> None:
    assert extract("I cannot tell.") is None


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "gsm8k").mkdir()
    rows = [{"question": f"What is {i} + 1?", "answer": f"{i}+1={i + 1}\n#### {i + 1}"} for i in range(30)]
    (tmp_path / "gsm8k" / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


@pytest.mark.parametrize("chat", [True, False])
def test_answers_are_judged_by_value(data: Path, chat: bool) -> None:
    def answer(prompt: Any) -> str:
        i = int((prompt[0]["content"] if chat else prompt).split(" is ")[1].split()[0])
        return f"Add 1. \\boxed{{{i + 1}.0}} " + "and so on" * 99 if i % 3 else "Perhaps 1000."

    llm = FakeLLM(answer, chat)
    items = Gsm8k(limit=20).items(data, llm)
    records = {r["id"]: r for r in Gsm8k().run(llm, None, items)}
    json.dumps(records)
    assert [i.id for i in items] == [f"gsm8k/{i}" for i in range(20)]
    assert [records[i.id]["pass"] for i in items] == [bool(n % 3) for n in range(20)]
    assert records["gsm8k/1"]["tokens"] < 20  # ended with its box
    assert len(Gsm8k(limit=0).items(data, llm)) == 30
    assert len(Gsm8k().quick().items(data, llm)) == 8


def test_an_answer_without_a_number_is_named(data: Path) -> None:
    (data / "gsm8k" / "test.jsonl").write_text('{"question": "x", "answer": "none"}')
    with pytest.raises(DataError, match="row 1: field 'answer'"):
        Gsm8k().items(data, FakeLLM(str))

"""HumanEval and MBPP on problems made here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from fake_llm import FakeLLM

from narrows.measure.quality import MEASURES
from narrows.measure.quality.base import DataError
from narrows.measure.quality.code import HumanEval, Mbpp, complete, extract
from narrows.measure.quality.sandbox import Sandbox, SandboxError
from narrows.methods import StackError, build, show


@pytest.fixture(scope="module", autouse=True)
def _programs_run_here() -> None:
    try:
        Sandbox().check()
    except SandboxError as error:
        pytest.skip(str(error))


def human(i: int) -> dict[str, str]:
    opening = f"from typing import List\n\ndef helper(x):\n    return x + {i}\n\n"
    return {
        "task_id": f"HumanEval/{i}",
        "prompt": f'{opening}def add{i}(x: List[int]):\n    """Add."""\n',
        "entry_point": f"add{i}",
        "test": f"def check(candidate):\n    assert candidate([1, 2]) == {3 + i}\n",
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "humaneval").mkdir()
    with gzip.open(tmp_path / "humaneval" / "HumanEval.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(human(i)) + "\n" for i in range(20))
    (tmp_path / "mbpp").mkdir()
    rows = [
        {"task_id": i, "text": "Double it.", "code": "def twice(x): ...", "test_list": ["assert twice(2) == 4"]}
        for i in (2, 11, 12, 510, 511)
    ]
    (tmp_path / "mbpp" / "mbpp.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def judged(measure: Any, llm: FakeLLM, data: Path) -> dict[str, dict[str, Any]]:
    items = measure.items(data, llm)
    records = list(measure.run(llm, None, items))
    json.dumps(records)
    assert sorted(r["id"] for r in records) == sorted(i.id for i in items)
    assert llm.closed == llm.opened == len(items)
    return {r["id"]: r for r in records}


def test_right_and_wrong_answers_of_a_chat_model(data: Path) -> None:
    def answer(prompt: Any) -> str:
        name = prompt[0]["content"].split("def add")[1].split("(")[0]
        i = int(name)
        if i % 2:
            return "I do not know."
        return f"Sure:\n```python\ndef add{i}(x: List[int]):\n    return helper(sum(x))\n```\nIt " + "explains " * 500

    records = judged(HumanEval(), FakeLLM(answer), data)
    assert [records[f"HumanEval/{i}"]["pass"] for i in range(20)] == [i % 2 == 0 for i in range(20)]
    assert records["HumanEval/0"]["reason"] == "passed"
    assert records["HumanEval/0"]["tokens"] < 60  # ended with its block


def test_a_base_model_goes_on_with_the_prompt(data: Path) -> None:
    records = judged(HumanEval(limit=3), FakeLLM(lambda _: "    return helper(sum(x))\n", chat=False), data)
    assert [r["pass"] for r in records.values()] == [True] * 3


def test_mbpp_takes_the_test_split(data: Path) -> None:
    llm = FakeLLM(lambda _: "```python\ndef twice(x):\n    return 2 * x\n```")
    records = judged(Mbpp(), llm, data)
    assert sorted(records) == ["mbpp/11", "mbpp/12", "mbpp/510"]
    assert all(r["pass"] for r in records.values())
    wrong = judged(Mbpp(limit=1), FakeLLM(lambda _: "```python\ndef twice(x):\n    return x\n```"), data)
    assert wrong["mbpp/11"]["reason"] == "AssertionError"


def test_own_rows_are_all_taken(tmp_path: Path) -> None:
    (tmp_path / "mbpp").mkdir()
    row = {"task_id": "mine", "text": "Double.", "test_list": ["assert twice(2) == 4"]}
    (tmp_path / "mbpp" / "own.jsonl").write_text(json.dumps(row))
    assert [i.id for i in Mbpp().items(tmp_path, FakeLLM(str))] == ["mbpp/mine"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x\n```python\ndef f():\n    pass\n```\ny", "def f():\n    pass\n"),
        ("```py\ndef f(): 1\n```", "def f(): 1\n"),
        ("```\ndef f(): 1\n```", "def f(): 1\n"),
        ("```python\nimport os\n```\n```python\ndef f(): 1\n```", "def f(): 1\n"),
        ("```python\ndef f():\n    return 1", "def f():\n    return 1"),
        ("def f(): 1", "def f(): 1"),
    ],
)
def test_code_is_found_in_answers(text: str, code: str) -> None:
    assert extract(text, "f") == code


def test_an_answer_is_complete_when_its_block_closes() -> None:
    assert not complete("```python\ndef f(): 1\n", "f")
    assert not complete("```python\ndef ff(): 1\n```", "f")
    assert complete("```python\ndef f(): 1\n```", "f")


def test_bad_data_is_named(data: Path) -> None:
    model = FakeLLM(str)
    with pytest.raises(DataError, match="--data"):
        HumanEval().items(None, model)
    file = data / "mbpp" / "mbpp.jsonl"
    for line, message in (
        ("{", "line 2: not JSON"),
        ("[]", "line 2: must be an object"),
        ('{"task_id": 1, "text": "x"}', "line 2: no field 'test_list'"),
        ('{"task_id": 1, "text": 5, "test_list": []}', "line 2: field 'text' is of type int"),
        ('{"task_id": 1, "text": "x", "test_list": []}', "test_list must be"),
    ):
        file.write_text('{"task_id": 11, "text": "x", "test_list": ["assert 1"]}\n' + line)
        with pytest.raises(DataError, match=message):
            Mbpp().items(data, model)
    (data / "humaneval" / "HumanEval.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="cannot be read"):
        HumanEval().items(data, model)


def test_settings_are_read_and_printed() -> None:
    measure = build("measure", "humaneval:limit=3,sandbox=off", MEASURES)
    assert measure == HumanEval(limit=3, sandbox="off")
    assert build("measure", show(measure, MEASURES), MEASURES) == measure
    assert HumanEval().quick().limit == 8
    with pytest.raises(StackError, match="sandbox"):
        build("measure", "mbpp:sandbox=maybe", MEASURES)

"""Facts in long texts: where they are, how long the prompts are, and how answers are scored."""

from __future__ import annotations

import gzip
import json
from itertools import islice, pairwise
from pathlib import Path

import pytest
from fake_llm import FakeLLM

from narrows import LLM
from narrows.measure.quality import MEASURES
from narrows.measure.quality.base import DataError
from narrows.measure.quality.filler import sentences
from narrows.measure.quality.needle import ANSWER, KINDS, Needle, score
from narrows.methods import StackError, build, show


def silent(prompt: object) -> str:
    return "nothing"


@pytest.mark.parametrize("chat", [True, False])
def test_prompts_fit_and_hold_their_answers(chat: bool) -> None:
    llm = FakeLLM(silent, chat)
    items = Needle(lengths="512+2048+8192", samples=3).items(None, llm)
    assert len({i.id for i in items}) == len(items) == 3 * 4 * 3
    for item in items:
        case = item.content
        assert case.length - ANSWER - 32 <= len(case.prompt) <= case.length - ANSWER
        text = llm.decode(case.prompt)
        assert all(value in text for value in case.expected)
        assert len(case.expected) == {"multivalue": 4, "tracking": 5}.get(case.kind, 1)
        if case.depth is not None:
            assert text.index(case.expected[0]) / len(text) == pytest.approx(case.depth, abs=0.15)


def test_items_are_the_same_every_time_and_differ_from_one_another() -> None:
    measure = Needle(lengths="1024", samples=2)
    first, again = (measure.items(None, FakeLLM(silent)) for _ in range(2))
    assert first == again
    assert len({i.content.expected for i in first}) == len(first)
    assert [i.id for i in Needle(lengths="1024", samples=2, limit=3).items(None, FakeLLM(silent))] == [
        i.id for i in first[:3]
    ]


def test_samples_of_a_length_begin_alike() -> None:
    a, b = Needle(lengths="2048", kinds="single", samples=2).items(None, FakeLLM(silent))
    same = next(i for i, (x, y) in enumerate(zip(a.content.prompt, b.content.prompt, strict=False)) if x != y)
    assert same > 400


def test_only_tracking_needs_all_hops_and_the_assignments_form_a_chain() -> None:
    llm = FakeLLM(silent)
    (item,) = Needle(lengths="1024", kinds="tracking", samples=1).items(None, llm)
    text = llm.decode(item.content.prompt)
    names = item.content.expected
    places = [text.index(f"VAR {b} = VAR {a}.") for a, b in pairwise(names)]
    assert places == sorted(places)
    assert text.count(names[0]) == 2


def test_run_scores_every_cell() -> None:
    llm = FakeLLM(silent)
    items = Needle(lengths="512+1024", samples=2).items(None, llm)
    expected = {tuple(i.content.prompt): i.content.expected for i in items}
    llm.answer = lambda prompt: " and ".join(expected[tuple(prompt)][:2]) + " for sure" * 50
    records = list(Needle().run(llm, None, items))
    json.dumps(records)
    share = {"single": 1.0, "multikey": 1.0, "multivalue": 0.5, "tracking": 0.4}
    assert {cell: r[cell] for r in records for cell in r if "-" in cell} == {
        f"{kind}-{length}": share[kind] for kind in KINDS for length in (512, 1024)
    }
    assert all(r["pass"] == (r["score"] == 1) == (r["tokens"] < 50) for r in records)


def test_lengths_beyond_the_model_are_skipped_with_the_reason() -> None:
    llm = FakeLLM(silent, max_model_len=1000)
    items = Needle(lengths="512+1024", samples=1).items(None, llm)
    records = {r["id"]: r for r in Needle().run(llm, None, items)}
    assert records["needle/single/1024/0"]["skipped"] == "the model holds 1000 tokens"
    assert "score" not in records["needle/single/1024/0"]
    assert llm.opened == 4


def test_filler_comes_from_a_given_text(tmp_path: Path) -> None:
    (tmp_path / "haystack").mkdir()
    with gzip.open(tmp_path / "haystack" / "b.txt.gz", "wt") as file:
        file.write("It was  a whale.\nCall me!" * 400)
    llm = FakeLLM(silent)
    (item,) = Needle(lengths="512", kinds="single", samples=1).items(tmp_path, llm)
    assert "It was a whale. Call me!" in llm.decode(item.content.prompt)
    with pytest.raises(DataError, match=r"the haystack holds .* length of 100000"):
        Needle(lengths="100000").items(tmp_path, llm)


def test_made_filler_has_no_numbers_and_varies() -> None:
    made = list(islice(sentences(None), 1000))
    assert made == list(islice(sentences(None), 1000))
    assert len(set(made)) > 990
    assert not any(c.isdigit() for s in made for c in s)


def test_scores_are_shares() -> None:
    assert score("1,234,567 and XYZAB", ("1234567", "7654321")) == 0.5


def test_settings() -> None:
    measure = build("measure", "needle:lengths=512+1024,kinds=single+tracking", MEASURES)
    assert build("measure", show(measure, MEASURES), MEASURES) == measure
    assert Needle().quick() == Needle(lengths="1024+2048", samples=2)
    for text in ("needle:lengths=12", "needle:lengths=1k", "needle:kinds=double"):
        with pytest.raises(StackError):
            build("measure", text, MEASURES)
    assert [m.name for m in Needle(lengths="512+1024", kinds="single").metrics][2:] == ["single-512", "single-1024"]


def test_a_real_model_finds_a_single_needle(smollm2_path: Path) -> None:
    llm = LLM(str(smollm2_path), max_model_len=1024, progress=False)
    (item,) = Needle(lengths="512", kinds="single", samples=1).items(None, llm)
    (record,) = Needle().run(llm, None, [item])
    assert record["pass"]

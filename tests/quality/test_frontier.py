"""`narrows frontier`: plans, what none beats, and a run from the plan to the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from narrows.cli import app
from narrows.measure.frontier.plan import Plan, PlanError, Variant, points, run

PLAN = """
model = "{model}"
measure = "kl:text=own,window=32,chunks=2"

[[variant]]
name = "int{{bits}}"
stack = "weights=int{{bits}}"
each = {{ bits = {bits} }}

[[variant]]
name = "2:4 int8, {{tokens}}"
compress = "--pattern 2:4 --tokens {{tokens}} --length 32 --seed {{seed}}"
each = {{ tokens = [64], seed = {seeds} }}
"""


def plan(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text)
    return path


def test_each_stands_for_every_combination(tmp_path: Path) -> None:
    found = Plan.read(plan(tmp_path, PLAN.format(model="m", bits=[8, 4], seeds=[0, 1])))
    assert [v.name for v in found.variants] == ["int8", "int4", "2:4 int8, 64", "2:4 int8, 64"]
    assert [v.stack for v in found.variants] == ["weights=int8", "weights=int4", "", ""]
    assert found.variants[3].compress[-1] == "1"
    assert len({found.result(v) for v in found.variants}) == 4


def test_a_result_is_of_its_model_and_measures(tmp_path: Path) -> None:
    """What was done for another plan in the same folder is not taken for this one's."""
    text = PLAN.format(model="m", bits=[8], seeds=[0])
    plans = [
        Plan.read(plan(tmp_path, t)) for t in (text, text.replace('"m"', '"n"'), text.replace("chunks=2", "chunks=3"))
    ]
    assert len({p.result(v) for p in plans for v in p.variants}) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = ", "TOML"),
        ('model = "m"\nmeasure = "kl"\n', r"no \[\[variant\]\]"),
        ('measure = "kl"\n[[variant]]\nname = "a"\n', "model must be given"),
        ('model = "m"\nmeasure = "kl"\nvariants = 1\n', "no key 'variants'"),
        ('model = "m"\nmeasure = "kl"\n[[variant]]\nname = "a"\nwieghts = "int4"\n', "variant 1: no key 'wieghts'"),
        ('model = "m"\nmeasure = "kl"\n[[variant]]\nname = "{bits}"\n', r"variant 1: \{bits\} has no value in each"),
        ('model = "m"\nmeasure = "kl"\n[[variant]]\nname = "a"\ncompress = "{data}"\n', "give --data"),
        ('model = "m"\nmeasure = "kl"\n[[variant]]\nname = "a"\neach = { b = 1 }\n', "each must give a list"),
        (
            'model = "m"\nmeasure = "kl"\n[[variant]]\nname = "a"\n[[variant]]\nname = "b"\n',
            "two variants are the same",
        ),
    ],
)
def test_a_plan_with_a_fault_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.read(plan(tmp_path, text))


def test_the_frontier_is_what_no_other_beats_in_both() -> None:
    def row(name: str, size: float, value: float, better: str = "lower") -> dict[str, Any]:
        metric = {"measure": "kl", "metric": "mean", "value": value, "better": better}
        return {"name": name, "bytes_per_token": size, "metrics": [metric]}

    rows = [row("big", 8, 0.1), row("small", 4, 0.4), row("lost", 5, 0.5), row("spread", 6, 0.1), row("spread", 6, 0.3)]
    found = {p["name"]: p for p in points(rows, "kl", "mean")}
    assert {name for name, p in found.items() if p["beaten_by"] is None} == {"big", "small", "spread"}
    assert found["lost"]["beaten_by"] == "small"
    assert found["spread"] | {"runs": 2, "min": 0.1, "max": 0.3} == found["spread"]
    assert found["spread"]["value"] == pytest.approx(0.2)
    alone, twice = row("alone", 8, 0.1), row("twice", 9, 0.1)
    for one in (alone, twice):
        one["metrics"][0]["interval"] = [0.05, 0.2]
    assert [p["interval"] for p in points([alone, twice, twice], "kl", "mean")] == [[0.05, 0.2], None]
    higher = points([row("big", 8, 0.1, "higher"), row("small", 4, 0.4, "higher")], "kl", "mean")
    assert [p["name"] for p in higher if p["beaten_by"] is None] == ["small"]


def test_a_recipe_is_made_once_for_several_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def narrows(variant: Variant, command: str, *words: str) -> None:
        said.append(f"{command} {variant.name}")
        out = Path(words[words.index("--out") + 1])
        if command == "compress":
            out.mkdir()
        else:
            assert Path(words[0]).is_dir()
            size = {"candidate": 1, "baseline": 1}
            out.write_text(json.dumps({"bytes_per_token": size, "metrics": []}))

    monkeypatch.setattr("narrows.measure.frontier.plan._narrows", narrows)
    made, other = ("--pattern", "2:4"), ("--pattern", "4:8")
    variants = Variant("a", "weights=sparse", made), Variant("b", "", other), Variant("c", "prefill=dense", made)
    assert len(list(run(Plan("m", "kl", variants), tmp_path, [], []))) == 3
    assert said == ["compress a", "eval a", "compress b", "eval b", "eval c"]
    assert all(p.suffix == ".json" for p in tmp_path.iterdir())


def test_from_a_plan_to_a_result(tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARROWS_CACHE", str(tmp_path / "cache"))
    path, out = plan(tmp_path, PLAN.format(model=tiny_path, bits=[3], seeds=[0])), tmp_path / "f.json"
    command = ["frontier", str(path), "--out", str(out), "--threads", "1"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    result = json.loads(out.read_text())
    assert [(p["name"], p["runs"]) for p in result["points"]] == [("int3", 1), ("2:4 int8, 64", 1)]
    assert all(p["value"] > 0 for p in result["points"])
    assert [row["compress"][:13] for row in result["rows"]] == ["", "--pattern 2:4"]
    assert not [p for p in (tmp_path / "plan.work").iterdir() if p.is_dir()]  # models are measured, then removed

    monkeypatch.setattr("narrows.measure.frontier.plan._narrows", None)  # nothing is done twice
    assert CliRunner().invoke(app, command).exit_code == 0
    missing = CliRunner().invoke(app, [*command, "--metric", "ppl perplexity"])
    assert "is not one of kl mean" in str(missing.exception)

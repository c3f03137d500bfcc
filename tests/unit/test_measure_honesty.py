"""No speed of a lossy stack without its quality; the bandwidth and the noise beside a row; no paths in a result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from narrows.measure import conditions
from narrows.measure.conditions import under_conditions
from narrows.measure.honesty import HonestyError, check_quality, line, quality_of
from narrows.measure.provenance import describe_model, without_paths
from narrows.measure.samples import Samples
from narrows.stack import Stack

INT4 = Stack.parse("weights=int4")
FIGURE = {"measure": "kl", "metric": "mean", "value": 0.0123}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"weights")
    return path


def evaluated(model: Path, **changes: Any) -> Path:
    facts = {"model": describe_model(model)}
    cost = {"candidate": 5, "baseline": 9}
    result = {"stack": str(INT4), "metrics": [FIGURE], "bytes_per_token": cost, "provenance": facts} | changes
    path = model.parent / "eval.json"
    path.write_text(json.dumps(result))
    return path


def test_a_lossless_stack_needs_no_quality(model: Path) -> None:
    assert quality_of(Stack(), model, None) == []


def test_a_lossy_stack_shows_its_figures(model: Path) -> None:
    other_scheduler = Stack.parse("weights=int4 scheduler=continuous:budget=64")
    assert quality_of(other_scheduler, model, [evaluated(model)]) == [FIGURE]
    assert line([FIGURE]) == "quality: kl mean 0.0123"


def test_a_lossy_stack_without_quality_names_the_command(model: Path) -> None:
    with pytest.raises(HonestyError, match=r'narrows eval m\.gguf --stack "weights=int4.*--out FILE'):
        quality_of(INT4, model, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stack": "weights=int8"}, "is of the stack weights=int8"),
        ({"provenance": {"model": {"sha256": "0"}}}, "another model file"),
        ({"bytes_per_token": None}, "without bytes per token"),
        ({"provenance": {}}, "not a result of `narrows eval`"),
    ],
)
def test_another_quality_is_refused(model: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(HonestyError, match=message):
        quality_of(INT4, model, [evaluated(model, **changes)])


@pytest.mark.parametrize("size", [None, 0, {"candidate": 1, "baseline": None}, {"candidate": -1, "baseline": 1}])
def test_quality_without_bytes_is_no_result(size: Any) -> None:
    with pytest.raises(HonestyError, match="bytes per token"):
        check_quality({"bytes_per_token": size})


def test_rows_carry_the_bandwidth_before_and_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = iter([0.0, 0.5, 0.0])
    monkeypatch.setattr(conditions, "cores_of_others", lambda body: (body(), next(noise)))
    reads: Iterator[Samples] = iter([Samples((10.0,)), Samples((20.0,)), Samples((40.0,)), Samples((1.0,))])
    rows = list(under_conditions([{"bytes_per_second": 3e9}] * 2, lambda: next(reads)))
    assert [row["bandwidth_gigabytes"] for row in rows] == [15, 30]
    assert [row["bandwidth_share"] for row in rows] == [0.2, 0.1]
    assert [row["noisy"] for row in rows] == [False, True]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/opt/models/m.gguf", "m.gguf"),
        ("openvino=/opt/env/bin/python", "openvino=python"),
        ("~/m.gguf", "m.gguf"),
        ("../data/code", "code"),
        ("cannot open '/a/b/c.bin': gone", "cannot open 'c.bin': gone"),
        ("org/repo:q4", "org/repo:q4"),
        ("bench/results/x.json", "bench/results/x.json"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("either/or", "either/or"),
    ],
)
def test_paths_of_the_machine_stay_out(text: str, shown: str) -> None:
    assert without_paths(text) == shown


def test_paths_in_the_working_directory_are_relative(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert without_paths(f"--out={tmp_path}/results/x.json") == "--out=results/x.json"

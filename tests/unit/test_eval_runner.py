"""``narrows eval``: choosing measures, keeping records, going on after an interruption, and what comes out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from narrows.cli import app
from narrows.measure.quality import MEASURES, runner
from narrows.measure.quality.base import DataError, Item, Metric, Record
from narrows.measure.quality.cli import _baseline, chosen
from narrows.methods import StackError
from narrows.stack import Stack


@dataclass(frozen=True)
class Counting:
    """Measures how often it was asked; stops where it is told to."""

    size: int = 4
    missing: bool = False

    metrics: ClassVar = (Metric("good", "higher", "pass"),)
    joint: ClassVar[bool] = False
    dataset: ClassVar[str | None] = None
    asked: ClassVar[list[str]] = []
    stop_at: ClassVar[str] = ""

    def quick(self) -> Counting:
        return Counting(2)

    def items(self, data: Path | None, model: Any) -> Sequence[Item]:
        if self.missing:
            raise DataError("there is no data/x.jsonl: give --data DIR")
        return [Item(f"i{n}", n) for n in range(self.size)]

    def run(self, model: Any, baseline: Any, items: Sequence[Item]) -> Iterator[Record]:
        for item in items:
            if item.id == self.stop_at:
                raise KeyboardInterrupt
            self.asked.append(item.id)
            yield {"id": item.id, "good": model.good}


@dataclass(frozen=True)
class Joint(Counting):
    joint: ClassVar[bool] = True


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (Counting, Joint):
        monkeypatch.setitem(MEASURES, cls.__name__.lower(), f"{__name__}:{cls.__name__}")
    Counting.asked.clear()
    Counting.stop_at = ""


def subject(name: str, good: bool = True) -> runner.Subject:
    model: Any = SimpleNamespace(good=good, stack=Stack())
    return runner.Subject(model, name, f"sha of {name}")


def run(path: Path, measures: dict[str, Any], *subjects: runner.Subject | None, **options: Any) -> list[dict[str, Any]]:
    journal = runner.Journal(path)
    try:
        return list(runner.evaluate(measures, subjects[0], subjects[1], journal, **options))  # type: ignore[arg-type]
    finally:
        journal.close()


def test_candidate_and_baseline_are_paired(tmp_path: Path) -> None:
    (result,) = run(tmp_path / "r", {"counting": Counting(12)}, subject("c", False), subject("b"))
    (metric,) = result["metrics"]
    assert (metric["value"], metric["baseline"], metric["n"], metric["passed"]) == (0, 1, 12, False)
    assert metric["p_value"] == pytest.approx(2 * 0.5**12)
    assert result["settings"] == "counting:size=12,missing=false"


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    Counting.stop_at = "i2"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "r", {"counting": Counting()}, subject("c"), None)
    with (tmp_path / "r").open("a") as f:
        f.write('{"key": "cut sho')  # what a machine that loses power leaves
    Counting.stop_at = ""
    (result,) = run(tmp_path / "r", {"counting": Counting()}, subject("c"), None)
    assert Counting.asked == ["i0", "i1", "i2", "i3"]
    assert result["metrics"][0]["n"] == 4
    run(tmp_path / "r", {"counting": Counting()}, subject("c"), None)
    assert len(Counting.asked) == 4


def test_records_are_only_used_for_what_they_were_measured_on(tmp_path: Path) -> None:
    run(tmp_path / "r", {"counting": Counting()}, subject("c"), None)
    run(tmp_path / "r", {"counting": Counting()}, subject("another"), None)
    run(tmp_path / "r", {"counting": Counting(3)}, subject("c"), None)
    assert len(Counting.asked) == 4 + 4 + 3


def test_a_limit_is_of_items(tmp_path: Path) -> None:
    (result,) = run(tmp_path / "r", {"counting": Counting()}, subject("c"), None, limit=2)
    assert result["items"] == 2


def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    measures = {"counting": Counting(missing=True), "joint": Joint()}
    first, second = run(tmp_path / "r", measures, subject("c"), None, optional=True)
    assert first["skipped"] == "there is no data/x.jsonl: give --data DIR"
    assert "unmodified model" in second["skipped"]
    with pytest.raises(DataError):
        run(tmp_path / "r", measures, subject("c"), None)


def test_measures_are_written_with_their_settings() -> None:
    measures: dict[str, Any] = chosen("kl:window=64,chunks=3,ppl,drift:tokens=9", quick=True, text=Path("a.txt"))
    assert list(measures) == ["kl", "ppl", "drift"]
    assert (measures["kl"].window, measures["kl"].chunks, measures["kl"].text) == (64, 3, "a.txt")
    assert (measures["ppl"].chunks, measures["ppl"].text) == (8, "a.txt")
    assert (measures["drift"].tokens, measures["drift"].openers) == (9, 4)
    with pytest.raises(StackError, match="did you mean 'drift'"):
        chosen("drfit", quick=False, text=None)
    with pytest.raises(ValueError, match="names kl twice"):
        chosen("kl,kl", quick=False, text=None)


def test_a_baseline_is_a_stack_or_a_model() -> None:
    assert _baseline(None) == (Stack(), None)
    assert _baseline("weights=int8") == (Stack.parse("weights=int8"), None)
    assert _baseline("a=b.gguf") == (Stack(), "a=b.gguf")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NARROWS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_command_prints_quality_beside_bytes(tiny_path: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "quality.json"
    line = ["eval", str(tiny_path), "--weights", "int2", "--measure", "kl:window=32,chunks=2,ppl:window=32,chunks=2"]
    done = CliRunner().invoke(app, [*line, "--threads", "1", "--out", str(out), "--gate"])
    assert done.exit_code == 1, done.output  # two bits fail the gates
    result = json.loads(out.read_text())
    assert not (tmp_path / "quality.json.partial").exists()
    size = result["bytes_per_token"]
    assert 0 < size["candidate"] < size["baseline"]
    assert result["stack"].startswith("weights=int2")
    assert not result["lossless"]
    assert not result["passed"]
    figures = {f"{m['measure']}.{m['metric']}": m for m in result["metrics"]}
    assert figures["kl.mean"]["value"] > 0.005
    assert figures["kl.mean"]["passed"] is False
    assert figures["ppl.perplexity"]["ratio"]["interval"]
    assert result["provenance"]["model"]["sha256"]
    assert "MB per token" in done.output
    assert "FAIL" in done.output


def test_kept_records_spare_the_next_candidate_the_baseline(tiny_path: Path, cache: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    line = ["eval", str(tiny_path), "--measure", "ppl:window=32,chunks=2", "--threads", "1", "--records", str(records)]
    values, counts = [], []
    for weights in ("int8", "int2"):
        done = CliRunner().invoke(app, [*line, "--weights", weights, "--json"])
        assert done.exit_code == 0, done.output
        values.append(json.loads(done.stdout)["metrics"][0]["baseline"])
        counts.append(len(records.read_text().splitlines()))
    assert values[0] == values[1]
    assert counts == [2 + 2, 2 + 2 + 2]


def test_the_unmodified_model_is_measured_once(tiny_path: Path, cache: Path) -> None:
    line = ["eval", str(tiny_path), "--measure", "kl:chunks=1,ppl:window=32,chunks=2", "--threads", "1", "--json"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["unmodified"]
    assert "unmodified model" in result["skipped"]["kl"]
    assert [m["metric"] for m in result["metrics"]] == ["perplexity"]
    assert "baseline" not in result["metrics"][0]
    assert list((cache / "eval").iterdir()) == []


def test_errors_name_the_option(tiny_path: Path, cache: Path) -> None:
    for option, value in (("--data", "absent"), ("--text", "absent.txt"), ("--measure", "pplx"), ("--stack", "kvv=1")):
        done = CliRunner().invoke(app, ["eval", str(tiny_path), option, value])
        assert isinstance(done.exception, ValueError), done.output
        assert value.partition("=")[0] in str(done.exception)

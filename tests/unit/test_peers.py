"""Peers beside us, with programs that only pretend to be peers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from narrows.measure.cli import app
from narrows.measure.compare import CompareError, compare, read
from narrows.measure.peers import engines, rounds, systems
from narrows.measure.peers.cases import Case, parse_cases
from narrows.measure.peers.rounds import run_rounds, summary
from narrows.measure.peers.systems import Setup, System, find_systems

LLAMA_BENCH = """#!/bin/sh
case "$*" in *"-fa on"*) echo '{"samples_ts": [20.0, 22.0]}';; *) echo '{"samples_ts": [10.0]}';; esac
"""
BATCHED_BENCH = """#!/bin/sh
echo 'a line of the log'
echo '{"speed_tg": 1.0}'
echo '{"speed_tg": 80.0}'
"""
PYTHON = """#!/bin/sh
[ "$2" = --version ] && { [ "$3" = openvino-genai ] && echo 1.2 && exit 0; exit 1; }
[ "$2" = openvino ] || { echo 'cannot open /somewhere/else/model.gguf' >&2; exit 3; }
echo 'progress'
echo '{"case": "decode-0", "rates": [3.0, 5.0, 4.0], "weights": "the file"}'
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    folder = tmp_path / "bin"
    program(folder / "llama-bench", LLAMA_BENCH)
    program(folder / "llama-batched-bench", BATCHED_BENCH)
    python = program(tmp_path / "python", PYTHON)
    pythons = {name: python for name in ("openvino", "transformers", "vllm")}
    return Setup(tmp_path / "m.gguf", threads=2, repeats=1, llamacpp=folder, pythons=pythons)


def test_cases_are_read_by_name() -> None:
    assert parse_cases("decode-0,prefill-4k,batch-8,decode-0") == [
        Case("decode-0", 0, steps=64),
        Case("prefill-4k", 4096),
        Case("batch-8", 16, batch=8, steps=32),
    ]


@pytest.mark.parametrize("name", ["", "decode", "prefill-0", "batch-0", "batch-65", "decode-64k", "serve-1"])
def test_what_is_no_case_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"--cases has '{name}'"):
        parse_cases(name)


def test_peers_that_are_here_are_found_and_others_skipped_with_a_way_to_get_them(setup: Setup) -> None:
    found, skipped = find_systems(setup)
    assert [(s.name, s.beside) for s in found] == [
        ("narrows", None),
        ("narrows LLM", None),
        ("llama.cpp", "narrows"),
        ("OpenVINO", "narrows LLM"),
    ]
    assert found[-1].version == "1.2"
    assert [(row["system"], "install" in row["get"]) for row in skipped] == [("transformers", True), ("vLLM", True)]


def test_llamacpp_counts_with_the_faster_attention(setup: Setup) -> None:
    llama = find_systems(setup)[0][2]
    [row] = llama.measure(parse_cases("decode-0"))
    assert row == {"case": "decode-0", "median": 21, "min": 20, "max": 22, "weights": "the file, flash attention on"}
    [row] = llama.measure(parse_cases("batch-8"))
    assert row["median"] == 80  # the first warms up


def test_a_folder_without_the_programs_is_named(setup: Setup, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no llama-bench in"):
        find_systems(Setup(setup.model, 1, 1, llamacpp=tmp_path))


def test_a_python_peer_reports_its_rates(setup: Setup) -> None:
    openvino = find_systems(setup)[0][3]
    [row] = openvino.measure(parse_cases("decode-0"))
    assert row == {"case": "decode-0", "median": 4, "min": 3, "max": 5, "weights": "the file"}


def test_why_a_peer_fails_is_kept_without_the_machines_paths(setup: Setup) -> None:
    python = setup.pythons["vllm"]

    def measure(cases: object) -> list[dict[str, object]]:
        return [{"case": systems.child([python, "engines.py", "vllm"])}]

    notes: list[str] = []
    rows, failed = run_rounds([System("vLLM", measure)], parse_cases("decode-0"), 2, wait=0, note=notes.append)
    assert rows == []
    assert failed == {"vLLM: decode-0": "python ended with 3: cannot open model.gguf"}
    assert len(notes) == 1  # what failed is not tried again


def fixed(name: str, speeds: list[float], beside: str | None = None) -> System:
    left = iter(speeds)
    return System(
        name, lambda cases: [{"case": c.name, "median": next(left), "weights": "the file"} for c in cases], beside
    )


def test_ratios_are_paired_by_round_and_noisy_rounds_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    others = iter([0.0, 0.0, 0.0, 0.0, 0.0, 0.9])
    monkeypatch.setattr(rounds, "cores_of_others", lambda body: (body(), next(others)))
    pair = [fixed("narrows", [10, 20, 30]), fixed("peer", [5, 5, 1], "narrows")]
    cases = parse_cases("decode-0")
    rows, failed = run_rounds(pair, cases, 3, wait=0, note=lambda line: None)
    assert [row["system"] for row in rows] == ["narrows", "peer"] * 3  # in turn
    own, peer = summary(pair, cases, rows)
    assert own["tokens_per_second"] == {"median": 20, "min": 10, "max": 30}
    assert peer["narrows_ratio"] == {"median": 3, "min": 2, "max": 4}  # not the 30 of the noisy round
    assert (peer["rounds"], peer["noisy"], peer["noisy_ratio"], failed) == (3, 1, False, {})


def test_engines_time_decoding_apart_and_check_what_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def engine(model: str, threads: int, max_len: int, max_batch: int, options: dict[str, bool]) -> object:
        return "the file", lambda prompts, count: ([count - options["short"]] * len(prompts), 0.5)

    monkeypatch.setitem(engines.ENGINES, "fake", engine)
    case = json.dumps([{"name": "batch-2", "context": 4, "batch": 2, "steps": 8}])
    engines.main("fake", "m", case, "1", "2", '{"short": false}')
    assert json.loads(capsys.readouterr().out) == {"case": "batch-2", "rates": [32, 32], "weights": "the file"}
    with pytest.raises(RuntimeError, match="5 were asked"):
        engines.main("fake", "m", case, "1", "2", '{"short": true}')


def result(**changes: object) -> dict[str, object]:
    speed = {"median": 10.0, "min": 8.0, "max": 20.0}
    rows = [{"threads": 1, "tokens": n, "tokens_per_second": speed} for n in (128, 512)]
    facts = {"cpu": "a", "isa": "scalar", "model": {"sha256": "1"}}
    return {"kind": "prefill", "rows": rows, "stack": "weights=auto", "provenance": facts} | changes


def test_compare_gives_ratios_with_the_widest_range() -> None:
    faster = [row | {"tokens_per_second": {"median": 20.0, "min": 16.0, "max": 24.0}} for row in result()["rows"]]  # type: ignore[union-attr]
    compared = compare(result(), result(rows=faster))
    assert [row["tokens"] for row in compared["rows"]] == [128, 512]
    assert compared["rows"][0]["ratio"] == {"median": 2.0, "min": 0.8, "max": 3.0}
    assert compared["warnings"] == []


def test_compare_says_what_does_not_match() -> None:
    with pytest.raises(CompareError, match="only A has threads 1, tokens 512"):
        compare(result(), result(rows=result()["rows"][:1]))  # type: ignore[index]
    with pytest.raises(CompareError, match="A is of kind prefill, B of kind decode"):
        compare(result(), result(kind="decode"))
    warnings = compare(result(), result(provenance={"cpu": "b"}, stack="weights=int4"))["warnings"]
    assert "cpu differs: a and b" in warnings
    assert "stack differs: weights=auto and weights=int4" in warnings


def test_compare_on_the_command_line(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(result()))
    b.write_text(json.dumps(result()))
    shown = CliRunner().invoke(app, ["compare", str(a), str(b)])
    assert shown.exit_code == 0
    assert "1.000x (0.400..2.500)" in shown.stdout
    assert json.loads(CliRunner().invoke(app, ["compare", str(a), str(b), "--json"]).stdout)["kind"] == "prefill"
    b.write_text('{"kind": "eval", "rows": []}')
    with pytest.raises(CompareError, match="kind 'eval'"):
        read(b)


def test_engines_run_in_a_python_without_narrows() -> None:
    done = systems.child([sys.executable, "-I", systems.ENGINES, "--version", "numpy"])
    assert done.strip()

"""`narrows bench serve` and `bench overhead` on real servers: counts and records, never speeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from servers import Server
from typer.testing import CliRunner

from narrows.cli import app


def bench(*args: Any, fails: str | None = None, key: str | None = None) -> dict[str, Any]:
    """The JSON result of a command, or the error it must end with."""
    result = CliRunner().invoke(app, ["bench", *map(str, args)], env={"OPENAI_API_KEY": key})
    if fails is not None:
        assert result.exception is not None and fails in str(result.exception), result.output
        return {}
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout) if "--json" in args else {"text": result.output}


def mooncake(path: Path) -> Path:
    """Six requests of 4 blocks, the first three of which all share; all at once."""
    rows = [{"timestamp": 0, "input_length": 2048, "output_length": 64, "hash_ids": [0, 1, 2, 3 + i]} for i in range(6)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_poisson_load_on_a_running_server(tiny: Server, tmp_path: Path) -> None:
    out = tmp_path / "new" / "load.json"
    args = ("--url", tiny.url, "--rate", 20, "--num-requests", 12, "--prompt-tokens", 40, "--output-tokens", 6)
    result = bench("serve", *args, "--slo", "e2e=1000", "--out", out, "--json", key="first-key")
    assert result == json.loads(out.read_text())
    assert (result["kind"], result["system"], result["server"]) == ("serve", "narrows", "tiny")
    assert (result["requests"], result["completed"], result["good"], result["errors"]) == (12, 12, 12, {})
    assert result["output_tokens"] == 72
    assert abs(result["prompt_tokens"] / 12 - 40) < 8  # made of words, and counted by the server
    assert all(result["times"][name]["p50"] > 0 for name in ("ttft", "tpot", "itl", "e2e"))
    assert len(result["requests_sent"]) == 12
    assert "first-key" not in out.read_text()
    assert result["provenance"]["commit"]


def test_a_trace_is_replayed_with_the_prefixes_it_shares(tiny: Server, tmp_path: Path) -> None:
    trace = mooncake(tmp_path / "trace.jsonl")
    args = ("--url", tiny.url, "--trace", trace, "--lengths", 0.1, "--rate", 1000, "--seed", 5, "--json")
    hits = tiny.metric("vllm:prefix_cache_hits_total")
    bench("serve", *args, "--num-requests", 1, key="first-key")
    assert tiny.metric("vllm:prefix_cache_hits_total") == hits
    result = bench("serve", *args, key="first-key")
    assert (result["completed"], result["output_tokens"]) == (6, 6 * 6)
    assert tiny.metric("vllm:prefix_cache_hits_total") - hits >= 6 * 64  # whole pages of the shared blocks


def test_a_table_for_people(tiny: Server) -> None:
    args = ("--url", tiny.url, "--model-name", "tiny", "--rate", "inf", "--num-requests", 3, "--output-tokens", 4)
    text = bench("serve", *args, "--prompt-tokens", 8, key="second-key")["text"]
    assert "tiny: 3 of 3 requests" in text and "ttft" in text and "p99" in text and "3 requests were good" in text


def test_failures_are_counted_and_not_hidden(tiny: Server) -> None:
    """Prompts that do not fit."""
    args = ("--url", tiny.url, "--rate", "inf", "--num-requests", 2, "--prompt-tokens", 5000, "--output-tokens", 4)
    result = bench("serve", *args, "--json", key="first-key")
    assert (result["completed"], result["errors"]) == (0, {"HTTP 400": 2})


def test_a_server_of_its_own(tiny_path: Path) -> None:
    args = (tiny_path, "--threads", 1, "--rate", 50, "--num-requests", 4, "--prompt-tokens", 8, "--output-tokens", 4)
    result = bench("serve", *args, "--stack", "scheduler=continuous:budget=64", "--json")
    assert result["completed"] == 4 and "budget=64" in result["stack"]
    assert result["provenance"]["model"]["name"] == tiny_path.name


def test_overhead_is_measured_on_the_same_work(tiny_path: Path) -> None:
    args = (tiny_path, "--streams", 2, "--prompt-tokens", 8, "--output-tokens", 16, "--rounds", 2, "--threads", 1)
    result = bench("overhead", *args, "--json")
    assert [row["round"] for row in result["rows"]] == [1, 2]
    assert all(row["share"] == pytest.approx(row["http"] / row["engine"]) for row in result["rows"])
    assert result["overhead"] == pytest.approx(1 - sum(row["share"] for row in result["rows"]) / 2)


def test_what_is_asked_wrongly_is_one_sentence(tiny: Server, tmp_path: Path) -> None:
    bench("serve", fails="either MODEL")
    bench("serve", "smollm2", "--url", tiny.url, fails="either MODEL")
    bench("serve", "--url", tiny.url, "--slo", "speed=1", fails="--slo")
    bench("serve", "--url", tiny.url, "--scale", 0, fails="--scale")
    bench("serve", "--url", tiny.url, "--trace", "azure-conv", fails="--data")
    bench("serve", "--url", tiny.url, fails="does not name a model", key="wrong")
    bench("serve", "--url", "http://127.0.0.1:9", fails="does not name a model")
    bench("serve", "--url", tiny.url, "--model-name", "other", fails="HTTP 404", key="first-key")
    bench("serve", tmp_path / "none.gguf", fails="none.gguf")

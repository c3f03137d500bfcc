"""The documents that are generated from results, and that they are in step with them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from narrows.measure import report

ROOT = Path(__file__).parents[2]
FACTS = {
    "cpu": "a processor",
    "isa": "scalar",
    "threads": 2,
    "command": "narrows bench",
    "commit": "abc",
    "model": {"name": "m.gguf"},
}


def peers() -> dict[str, Any]:
    speed, ratio = {"median": 20.0, "min": 19.0, "max": 21.0}, {"median": 2.0, "min": 1.5, "max": 2.5}
    own = {"case": "decode-4k", "system": "narrows", "tokens_per_second": speed, "weights": "the file"}
    own |= {"bytes_per_token": 5e6, "bandwidth_share": 0.5}
    peer = {"case": "decode-4k", "system": "vLLM", "tokens_per_second": speed, "weights": "bfloat16 safetensors"}
    peer |= {"narrows_ratio": ratio, "noisy_ratio": True}
    skipped = [{"system": "OpenVINO", "reason": "it is not installed"}]
    return {"rows": [own, peer], "skipped": skipped, "failed": {}, "bandwidth_gigabytes": 30.0, "provenance": FACTS}


def evaluated() -> dict[str, Any]:
    ratio = {"value": 1.01, "interval": [1.0, 1.02]}
    figures: list[dict[str, Any]] = [
        {
            "measure": "ppl",
            "metric": "perplexity",
            "value": 9.5,
            "interval": [9, 10],
            "n": 7,
            "baseline": 9,
            "ratio": ratio,
        },
        {"measure": "needle", "metric": "single-1024", "value": 1.0, "interval": None, "n": 5},
        {"measure": "needle", "metric": "single-4096", "value": 0.5, "interval": [0.2, 0.8], "n": 5},
    ]
    size = {"candidate": 5e6, "baseline": 9e6}
    result = {"stack": "weights=int4", "baseline": "weights=auto", "bytes_per_token": size, "metrics": figures}
    left_out = [{"measure": "needle", "left_out": {"the model holds 8192 tokens": 3}}]
    return result | {"skipped": {"mbpp": "no data"}, "measures": left_out, "provenance": FACTS}


def frontier() -> dict[str, Any]:
    big = {"name": "int8", "runs": 1, "bytes_per_token": 9e6, "value": 0.1, "min": 0.1, "max": 0.1, "beaten_by": None}
    worse = {"name": "2:4", "runs": 3, "bytes_per_token": 9.5e6, "value": 0.3, "min": 0.2, "max": 0.4}
    points = [big, worse | {"beaten_by": "int8"}]
    return {"metric": "kl mean", "measure": "kl:text=own", "points": points, "provenance": FACTS}


def kernel() -> dict[str, Any]:
    speed, once = {"median": 2e10, "min": 1e10, "max": 3e10}, {"median": 1, "min": 1, "max": 1}
    plain = {
        "format": "int8:g64",
        "pattern": "dense",
        "batch": 1,
        "weights_per_second": speed,
        "bytes_per_weight": 1.031,
    }
    plain |= {"bandwidth_share": 0.9, "dense_ratio": once}
    sparse = {"format": "int8:g64:sparse", "pattern": "2:4", "dense_ratio": {"median": 1.5, "min": 1.25, "max": 1.75}}
    return {"pattern": "2:4", "rows": [plain, plain | sparse], "provenance": FACTS}


def in_turn() -> dict[str, Any]:
    speed, ratio = {"median": 20, "min": 19, "max": 21}, {"median": 1.25, "min": 1, "max": 1.5}
    size = {"weight_bytes_per_token": 9e6, "kv_bytes_per_token": 1e6, "bandwidth_share": 0.5}
    row = {"stack": "weights=sparse", "batch": 8, "tokens_per_second": speed, "ratio": ratio, **size}
    return {"rows": [row], "provenance": FACTS}


def drafted() -> dict[str, Any]:
    speed, ratio = {"median": 20.0, "min": 19.0, "max": 21.0}, {"median": 1.25, "min": 1.0, "max": 1.75}
    known = {
        "batch": 8,
        "temperature": 0.7,
        "total_ratio": 1.5,
        "tokens_per_second": speed,
        "plain_ratio": ratio,
        "plain_cpu_ratio": ratio,
        "num_prompts": 3,
    }
    known |= {"acceptance_length": 1.5, "target_forwards_per_token": 0.67, "drafted_tokens_per_token": 0.8}
    known |= {"draft_share": 0.05, "same": 1.0}
    rows = [{"draft": name, **known} for name in ("none", "ngram|head:k=1")]
    return {"rows": rows, "prompts": "q.jsonl", "tokens": 96, "provenance": FACTS}


def served() -> dict[str, Any]:
    """What `bench serve` writes."""
    times = {"p50": 0.5, "p99": 1.25}
    known = {"requests": 4, "good": 3, "goodput": 0.125, "output_tokens_per_second": 9.5, "slo": {"ttft": 2.0}}
    settings = {"trace": "azure-conv", "scale": 0.1, "lengths": 1.0}
    sent = [{"due": float(due)} for due in (0, 2, 5, 8)]
    facts = {"settings": settings, "requests_sent": sent, "times": {"ttft": times, "tpot": times}, "provenance": FACTS}
    return {"system": "narrows", "server": "tiny", **known, **facts}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bench" / "results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    for name in ("performance", "quality"):
        (tmp_path / "docs" / f"{name}.head.md").write_text(f"# {name}\n")
    for name in ("README.md", "docs/sparse-decoding.md", "docs/speculation.md", "docs/serving.md"):
        (tmp_path / name).write_text(f"above\n{report.BEGIN}old\n{report.END}\nbelow\n")
    (tmp_path / "bench" / "results" / "peers-other.json").write_text(json.dumps(peers()))
    (tmp_path / "bench" / "results" / "eval-other.json").write_text(json.dumps(evaluated()))
    (tmp_path / "bench" / "results" / "frontier-other.json").write_text(json.dumps(frontier()))
    (tmp_path / "bench" / "results" / "kernel-other.json").write_text(json.dumps(kernel()))
    (tmp_path / "bench" / "results" / "decode-other.json").write_text(json.dumps(in_turn()))
    (tmp_path / "bench" / "results" / "draft-other.json").write_text(json.dumps(drafted()))
    (tmp_path / "bench" / "results" / "serve-other.json").write_text(json.dumps(served()))
    return tmp_path


def test_documents_are_written_and_then_in_step(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--check"], root) == 1
    stale = "docs/performance.md, README.md, docs/quality.md, docs/sparse-decoding.md, docs/speculation.md, "
    assert f"{stale}docs/serving.md: not what" in capsys.readouterr().err
    assert report.main([], root) == 0
    assert report.main(["--check"], root) == 0
    page = (root / "docs" / "performance.md").read_text()
    row = "| decode at 4,096 tokens of context | 20 (19..21) | 5.0 | 50% | 20 (**2.00x**, 1.50..2.50, noisy) |"
    assert row in page
    assert "- vLLM ran bfloat16 safetensors.\n- Without OpenVINO: it is not installed.\n" in page
    assert "30.0 GB/s read bandwidth; `narrows bench`, commit abc." in page
    shown = (root / "README.md").read_text()
    assert shown.startswith("above\n")
    assert shown.endswith("below\n")
    assert row in shown


def test_quality_shows_intervals_differences_and_the_needle_grid(root: Path) -> None:
    report.main([], root)
    page = (root / "docs" / "quality.md").read_text()
    assert "5.00 MB/token, against `weights=auto` at 9.00 MB/token." in page
    assert "| ppl perplexity | 9.5 [9, 10] | 9 | x 1.01 [1, 1.02] |  | 7 |" in page
    assert "| needle | 1,024 tokens | 4,096 tokens |" in page
    assert "| single | 1, n 5 | 0.5 [0.2, 0.8], n 5 |" in page
    assert "- mbpp skipped: no data" in page


def test_a_frontier_names_what_beats_the_others(root: Path) -> None:
    report.main([], root)
    page = (root / "docs" / "sparse-decoding.md").read_text()
    rows = page.split("| --- | --- | --- | --- |\n")[1]
    assert rows.startswith("| 2:4 | 9.50 | 0.3 (0.2..0.4, 3) | int8 |\n| int8 | 9.00 | 0.1 |  |\n")
    assert "(img/frontier-other.png)" in page


def test_results_come_in_the_order_of_their_models(tmp_path: Path) -> None:
    for name in ("zebra", "qwen-1.5b", "smollm2-int4", "smollm2"):
        (tmp_path / f"peers-{name}.json").write_text(json.dumps({"name": name}))
    names = [result["name"] for result in report.results(tmp_path, "peers")]
    assert names == ["smollm2", "smollm2-int4", "qwen-1.5b", "zebra"]


def test_the_documents_of_this_checkout_are_in_step() -> None:
    assert report.main(["--check"], ROOT) == 0


def test_no_result_holds_a_path_of_its_machine() -> None:
    for path in (ROOT / "bench" / "results").glob("*.json"):
        text = path.read_text()
        assert not re.search("/(home|root|tmp|Users)/", text), path.name


def test_speeds_of_sparse_weights_stand_beside_those_of_dense_ones(root: Path) -> None:
    report.main([], root)
    page = (root / "docs" / "sparse-decoding.md").read_text()
    assert "| int8:g64, dense | 1 | 20 (10..30) | 1.031 | 90% |  |\n" in page
    assert "| int8:g64, 2:4 | 1 | 20 (10..30) | 1.031 | 90% | 1.50x (1.25..1.75) |\n" in page
    assert "| `weights=sparse` | 8 | 20 (19..21) | 10.0 | 50% | 1.25x (1.00..1.50) |\n" in page


def test_servers_stand_beside_each_other_under_load(root: Path) -> None:
    report.main([], root)
    page = (root / "docs" / "serving.md").read_text()
    row = (
        "| narrows, tiny | azure-conv, 4 at 0.50 a second | 75% (ttft 2 s) | 0.125 | 0.5 / 1.25 | 0.5 / 1.25 | 9.5 |\n"
    )
    assert "| good | good a second |" in page
    assert row in page


def test_loads_at_once_and_without_answers_are_shown_too(root: Path) -> None:
    failed = served() | {"system": "", "requests_sent": [{"due": 0.0}] * 4, "times": {"ttft": None, "tpot": None}}
    (root / "bench" / "results" / "serve-other.json").write_text(json.dumps(failed | {"good": 0, "goodput": 0.0}))
    report.main([], root)
    page = (root / "docs" / "serving.md").read_text()
    assert "| tiny | azure-conv, 4 at once | 0% (ttft 2 s) | 0.000 |  |  | 9.5 |\n" in page


def test_drafts_stand_beside_plain_decoding(root: Path) -> None:
    report.main([], root)
    page = (root / "docs" / "speculation.md").read_text()
    assert "3 prompts of q.jsonl, 96 tokens each" in page
    ratio = "1.25x (1.00..1.75)"
    row = rf"| `ngram\|head:k=1` | 8 | 0.7 | 1.50x | {ratio} | {ratio} | 1.50 | 0.67 | 0.80 | 5% | 100% |"
    assert page.count(f"{row}\n") == 1
    assert "none" not in page

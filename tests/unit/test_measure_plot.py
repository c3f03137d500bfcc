"""Plots without their library, and what noise is seen."""

import sys
from pathlib import Path

import pytest

from narrows.measure import noise, plot


def test_missing_matplotlib_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'narrows\[plot\]'"):
        plot.speeds({"kind": "decode", "rows": []}, tmp_path / "x.png")


FACTS = {"model": {"name": "m.gguf"}, "cpu": "a processor", "isa": "scalar"}


@pytest.mark.parametrize(("kind", "at"), [("decode", "context"), ("prefill", "tokens")])
def test_speeds_are_drawn(tmp_path: Path, kind: str, at: str) -> None:
    pytest.importorskip("matplotlib")
    speed = {"median": 2.0, "min": 1.0, "max": 3.0}
    rows = [{"threads": 1, at: n, "tokens_per_second": speed, "bandwidth_share": 0.5} for n in (8, 64)]
    plot.speeds({"kind": kind, "rows": rows, "provenance": FACTS}, tmp_path / "new" / "x.png")
    assert (tmp_path / "new" / "x.png").read_bytes().startswith(b"\x89PNG")


def test_ratios_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ratio = {"median": 2.0, "min": 1.0, "max": 3.0}
    rows = [{"case": "decode-0", "system": "narrows"}]
    rows += [{"case": "decode-0", "system": name, "narrows_ratio": ratio, "noisy_ratio": False} for name in plot.COLORS]
    plot.ratios([{"rows": rows, "provenance": FACTS}] * 2, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_drafts_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ratio = {"median": 1.2, "min": 0.9, "max": 1.5}
    rows = [
        {"draft": d, "batch": b, "temperature": 0.0, "plain_ratio": ratio, "acceptance_length": 1.5}
        for d in ("none", "ngram")
        for b in (1, 8)
    ]
    plot.drafts({"rows": rows, "provenance": FACTS}, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_a_frontier_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    point = {"runs": 2, "bytes_per_token": 1e6, "value": 0.2, "min": 0.1, "max": 0.3}
    points = [point | {"name": "a", "beaten_by": None}, point | {"name": "b", "beaten_by": "a", "min": 0.0}]
    plot.frontier(points, "m.gguf", "kl mean", tmp_path / "x.png")
    plot.frontier(points[:1], "m.gguf", "kl mean", tmp_path / "y.png")
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("x.png", "y.png"))


def test_noise_is_what_others_used() -> None:
    others = iter([10.0, 11.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "_busy_seconds", lambda: next(others))
        patch.setattr(noise.time, "monotonic", iter([0.0, 4.0]).__next__)
        assert noise.cores_of_others(lambda: "done") == ("done", 0.25)

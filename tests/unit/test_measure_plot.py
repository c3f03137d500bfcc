"""Plots without their library, and what noise is seen."""

import sys
from pathlib import Path

import pytest

from narrows.measure import noise, plot


def test_missing_matplotlib_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'narrows\[plot\]'"):
        plot.decode([], "m", tmp_path / "x.png")


def test_decode_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    speed = {"median": 2.0, "min": 1.0, "max": 3.0}
    rows = [
        {"threads": 1, "batch": 1, "context": n, "tokens_per_second": speed, "bandwidth_share": 0.5} for n in (0, 8)
    ]
    plot.decode(rows, "m", tmp_path / "new" / "x.png")
    assert (tmp_path / "new" / "x.png").read_bytes().startswith(b"\x89PNG")


def test_noise_is_what_others_used() -> None:
    others = iter([10.0, 11.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "_busy_seconds", lambda: next(others))
        patch.setattr(noise.time, "monotonic", iter([0.0, 4.0]).__next__)
        assert noise.cores_of_others(lambda: "done") == ("done", 0.25)

"""What long work says where there is no terminal."""

from __future__ import annotations

import pytest

from narrows.progress import EVERY, _Lines, bar


def test_a_log_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter((0.0, 1.0, EVERY - 1, EVERY, EVERY + 1, 70 * EVERY))
    lines = _Lines("reading", 2000, lambda: next(times))
    for _ in range(5):
        lines(100)
    assert capsys.readouterr().err.splitlines() == [
        "reading: 300 of 2,000 (15%) after 1 min, about 6 min left",
        "reading: 500 of 2,000 (25%) after 1 h 10 min, about 3 h 30 min left",
    ]


def test_work_that_is_soon_done_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("reading", 3) as advance:
        for _ in range(3):
            advance()
    with bar("nothing", 0) as advance:
        advance(0)
    assert capsys.readouterr() == ("", "")

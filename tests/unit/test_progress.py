"""What long work says where there is no terminal, and what becomes of it when it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from narrows.progress import EVERY, _Lines, bar, resumable


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


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (SystemExit(143), 143)])
def test_who_stops_work_is_told_how_to_go_on(
    stop: BaseException, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left, resumable(tmp_path / "a.partial"):
        raise stop
    assert left.value.code == code
    assert f"the same command goes on from {tmp_path / 'a.partial'}" in capsys.readouterr().err


def test_work_is_one_commands_at_a_time(tmp_path: Path) -> None:
    busy = pytest.raises(BlockingIOError, match="in use by another command")
    with resumable(tmp_path), busy, resumable(tmp_path):
        pytest.fail("two commands are at it")
    with resumable(tmp_path):
        pass


def test_a_command_that_is_told_to_end_takes_its_children_along() -> None:
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    command = f"subprocess.run([sys.executable, '-c', {child!r}])"
    script = f"import subprocess, sys, narrows.cli as cli; cli.app = lambda: {command}; cli.main()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.terminate()
        assert parent.wait(20) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

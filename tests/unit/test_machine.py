"""How many threads and how much memory a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from narrows import machine


def test_this_machine() -> None:
    threads, why = machine.default_threads()
    assert 1 <= threads <= len(os.sched_getaffinity(0))
    assert why.startswith(f"{threads} ")
    assert machine.available_memory() > 0


def fake_machine(root: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """Writes files (`__` for a slash, `_` stays) under a root that stands for /sys/fs/cgroup."""
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(machine, "_CGROUP", root)
    monkeypatch.setattr(machine, "_cgroup_folders", lambda: [root / "job", root])


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"job__cpuDOTmax": "max 100000\n"}, None),
        ({"job__cpuDOTmax": "150000 100000\n"}, 1.5),
        ({"job__cpuDOTmax": "400000 100000\n", "cpuDOTmax": "200000 100000\n"}, 2.0),
        ({"cpu__cpuDOTcfs_quota_us": "300000\n", "cpu__cpuDOTcfs_period_us": "100000\n"}, 3.0),
        ({"cpu__cpuDOTcfs_quota_us": "-1\n", "cpu__cpuDOTcfs_period_us": "100000\n"}, None),
    ],
)
def test_quota(files: dict[str, str], quota: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_machine(tmp_path, monkeypatch, **files)
    assert machine.cpu_quota() == quota


def test_threads_round_the_quota_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_machine(tmp_path, monkeypatch, cpuDOTmax="150000 100000")
    assert machine.default_threads()[0] == 1
    fake_machine(tmp_path, monkeypatch, cpuDOTmax="50000 100000")
    assert machine.default_threads()[0] == 1


def test_memory_of_the_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_machine(tmp_path, monkeypatch, **{"job__memoryDOTmax": "1000000", "job__memoryDOTcurrent": "400000"})
    assert machine.available_memory() == 600000

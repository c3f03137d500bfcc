"""What else used the machine during a measurement. Known on Linux; elsewhere nothing is seen."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
NOISY_CORES = 0.15  # that others used, or the host withheld, on average: more spoils a measurement


def cores_of_others(body: Callable[[], T]) -> tuple[T, float]:
    """What `body` returns, and the cores that others kept busy meanwhile."""
    start, before = time.monotonic(), _busy_seconds()
    result = body()
    return result, max(0.0, _busy_seconds() - before) / (time.monotonic() - start)


def wait_for_quiet(patience: float) -> None:
    """Returns when others have left the machine alone for a second, or after `patience` seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end and cores_of_others(lambda: time.sleep(1))[1] > NOISY_CORES:
        pass


def _busy_seconds() -> float:
    """CPU seconds since the machine started, without those of this process and its ended children."""
    try:
        times = Path("/proc/stat").read_text().split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, times)
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return total - sum(use.ru_utime + use.ru_stime for use in own)

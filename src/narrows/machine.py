"""What this process may use of the machine it runs on."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger(__name__)

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")
STALE_SECONDS = 24 * 3600


def cache_dir() -> Path:
    """Where everything that is kept between runs lives: $NARROWS_CACHE or ~/.cache/narrows."""
    return Path(os.environ.get("NARROWS_CACHE") or "~/.cache/narrows").expanduser()


def keep(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """A file that spares a later run some work. A folder that cannot be written, or is full, costs it just that.

    The file appears whole or not at all, also with several processes at work.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        fd, temporary = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
        try:
            with open(fd, "wb") as file:
                write(file)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        log.info("%s is not kept for later runs: %s", Path(path.parent.name, path.name), error)


@contextmanager
def alone_in(path: Path) -> Iterator[None]:
    """No other process is in this file or folder meanwhile, where the file system can tell. Raises BlockingIOError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BlockingIOError(f"{path} is in use by another command: wait for it, or stop it") from None
    except OSError:
        log.info("%s cannot be locked", path)
    try:
        yield
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Removes what processes that were killed while writing left behind."""
    for left in folder.glob("*.tmp"):
        with suppress(FileNotFoundError):  # another process was faster
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()


def default_threads() -> tuple[int, str]:
    """How many threads to use, and a phrase that says why: the least of affinity, cgroup quota and physical cores."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    limits = {"processors in the affinity mask": len(cpus), "physical cores": _physical_cores(cpus)}
    quota = cpu_quota()
    if quota is not None:
        limits["processors of the cgroup's quota"] = max(1, int(quota))
    least = min(limits.values())
    return least, f"{least} {next(name for name, value in limits.items() if value == least)}"


def cpu_quota() -> float | None:
    """Processors' worth of time the cgroups of this process may use, or None without a limit."""
    quotas = []
    for folder in _cgroup_folders():
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
    quota, period = (_read(_CGROUP / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if quota and period and int(quota) > 0:
        quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def available_memory() -> int:
    """Bytes this process could take without swapping or hitting its cgroup's limit."""
    fields = dict(line.split(":", 1) for line in _read(Path("/proc/meminfo")).splitlines() if ":" in line)
    found = [int(fields["MemAvailable"].split()[0]) << 10] if "MemAvailable" in fields else []
    for folder in _cgroup_folders():
        limit, used = _read(folder / "memory.max"), _read(folder / "memory.current")
        if limit.isdigit() and used.isdigit():
            found.append(max(0, int(limit) - int(used)))
    return min(found, default=4 << 30)


def _physical_cores(cpus: set[int]) -> int:
    siblings = [_read(_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list") for cpu in cpus]
    return len(set(siblings)) if all(siblings) else len(cpus)


def _cgroup_folders() -> list[Path]:
    """The folder of this process's cgroup and those above it, whose limits hold too."""
    line = next((x for x in _read(Path("/proc/self/cgroup")).splitlines() if x.startswith("0::")), "0::/")
    own = _CGROUP / line[3:].lstrip("/")
    return [own, *(p for p in own.parents if p.is_relative_to(_CGROUP))]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""

"""Where a result comes from: what must be known to judge it, or to measure it again."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "cpu model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def num_cpus() -> int:
    """Processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def commit() -> str | None:
    """Commit of the checkout this package is imported from, with "+" when files differ; None outside one."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *args], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        # A checkout that merely contains the installed package does not say what the package was built from.
        if git("ls-files", Path(__file__).name) == "":
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


_PATH = re.compile(r"""(?<![\w.:/~-])(?:~|\.\.)?(?:/[^\s/,:;'"()\[\]]+)+/?""")


def without_paths(text: str) -> str:
    """`text` with each path out of the working directory as its last component, and those within relative to it.

    A result says what was measured, not how its machine's folders are called.
    """

    def shorten(match: re.Match[str]) -> str:
        path = Path(os.path.abspath(Path(match[0]).expanduser()))
        here = Path.cwd()
        return str(path.relative_to(here)) if path.is_relative_to(here) else path.name

    return _PATH.sub(shorten, text)


def describe_model(path: Path) -> dict[str, Any]:
    """Name, bytes and sha256 of a model file, or of each file of a model directory, in order."""
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as f:
            while chunk := f.read(1 << 20):
                digest.update(chunk)
    return {"name": path.name, "bytes": sum(f.stat().st_size for f in files), "sha256": digest.hexdigest()}


def provenance(*, threads: int | None = None, model: Path | None = None) -> dict[str, Any]:
    """The record every result file carries. `threads` and `model` are those of the measurement, where it has them."""
    from narrows import _native

    versions = {"python": platform.python_version()}
    for package in ("narrows", "numpy", "tokenizers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # run from a source tree that is not installed
            versions[package] = "unknown"
    record: dict[str, Any] = {
        "command": shlex.join(["narrows", *map(without_paths, sys.argv[1:])]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cpus": num_cpus(),
        "isa": _native.isa(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": versions,
    }
    if threads is not None:
        record["threads"] = threads
    if model is not None:
        record["model"] = describe_model(model)
    return record

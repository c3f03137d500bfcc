"""A server of our own, for as long as it is measured."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from .client import BenchError

START_SECONDS = 600.0


@contextlib.contextmanager
def own_server(model: str, *options: str) -> Iterator[str]:
    """Runs `narrows serve MODEL` on a free port and gives its URL once it is ready. Raises BenchError."""
    with tempfile.TemporaryDirectory(prefix="narrows-") as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "narrows", "serve", model, "--port", "0", *options]
        with log.open("w") as sink:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=sink)
        try:
            yield _wait(process, log)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + START_SECONDS
    url = None
    while time.monotonic() < end:
        if process.poll() is not None:
            raise BenchError(f"the server did not start: {_last(log.read_text().splitlines())}")
        if url is None and (found := re.search(r"on (http://\S+)", log.read_text())):
            url = found[1]
        if url is not None:
            with contextlib.suppress(URLError, OSError), urlopen(f"{url}/readyz", timeout=5) as reply:
                if reply.status == 200:
                    return url
        time.sleep(0.1)
    raise BenchError(f"the server was not ready within {START_SECONDS:g} s")


def _last(lines: Sequence[str]) -> str:
    return lines[-1] if lines else "it said nothing"

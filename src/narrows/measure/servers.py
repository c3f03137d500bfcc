"""A server's process, for as long as it is measured."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

START_SECONDS = 600.0


class StartError(ValueError):
    """A server that did not start; the message ends with the last that it said."""


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[object],
    find_url: Callable[[str], str | None],
    ready: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Runs a server and gives its URL once the path `ready` there answers with 200.

    `find_url` finds the URL in what the server has written so far. Raises StartError.
    """
    with tempfile.TemporaryDirectory(prefix="narrows-") as folder:
        log = Path(folder) / "log"
        with log.open("w") as sink:
            words = [str(word) for word in command]
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environment
            )
        try:
            yield _wait(name, process, log, find_url, ready)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def answers(url: str) -> bool:
    """Whether the address answers with 200."""
    with contextlib.suppress(URLError, OSError), urlopen(url, timeout=5) as reply:
        return reply.status == 200
    return False


def _wait(
    name: str, process: subprocess.Popen[bytes], log: Path, find_url: Callable[[str], str | None], ready: str
) -> str:
    end = time.monotonic() + START_SECONDS
    url = None
    while time.monotonic() < end:
        if process.poll() is not None:
            lines = log.read_text(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
            raise StartError(f"{name} did not start: {last[:300]}")
        url = url or find_url(log.read_text(errors="replace"))
        if url is not None and answers(f"{url}{ready}"):
            return url
        time.sleep(0.1)
    raise StartError(f"{name} was not ready within {START_SECONDS:g} s")

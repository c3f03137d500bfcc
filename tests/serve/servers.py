"""A real server for tests: the command in a process of its own, on a free port."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

PAGE_BYTES = 64 * 2 * 2 * 2 * 16 * 2  # of the tiny model: tokens, layers, keys and values, heads, dimensions, bytes
SECONDS = 60.0  # for anything that must happen at last


class Server:
    """`narrows serve ARGS`. `client` talks to it, with an API key if there is one; `url` is where it is.

    `under` is a command that runs the server's.
    """

    def __init__(self, log: Path, *args: str | Path, key: str | None = None, under: Sequence[str] = ()) -> None:
        self.log = log
        command = [*under, sys.executable, "-m", "narrows", "serve", *map(str, args), "--port", "0"]
        with log.open("w") as sink:
            self.process = subprocess.Popen(command, stderr=sink)
        found = wait(lambda: re.search(r"on (http://\S+)", log.read_text()) or self._ended())
        assert isinstance(found, re.Match), log.read_text()
        self.url = found[1]
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=SECONDS)

    def _ended(self) -> bool:
        return self.process.poll() is not None

    def ready(self) -> Server:
        wait(lambda: self.client.get("/readyz").status_code == 200 or self._ended())
        return self

    def post(self, path: str, **body: Any) -> httpx.Response:
        content = json.dumps(body)  # NaN, lone surrogates and all
        return self.client.post(path, content=content, headers={"Content-Type": "application/json"})

    def complete(self, prompt: Any, **body: Any) -> dict[str, Any]:
        """A greedy completion, which must succeed."""
        reply = self.post("/v1/completions", prompt=prompt, **{"temperature": 0, "max_tokens": 8, **body})
        assert reply.status_code == 200, reply.text
        return reply.json()

    def stream(self, path: str, **body: Any) -> Iterator[Any]:
        """The events of a stream, decoded; the last is "[DONE]" if the server says so."""
        with self.client.stream("POST", path, json={"stream": True, **body}) as reply:
            assert reply.status_code == 200, reply.read()
            assert reply.headers["content-type"].startswith("text/event-stream")
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    yield data if data == "[DONE]" else json.loads(data)

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample of /metrics."""
        for line in self.client.get("/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            found = re.match(rf"{re.escape(name)}(\{{|$)", sample)
            if found and all(f'{key}="{label}"' in sample for key, label in labels.items()):
                return float(value)
        raise AssertionError(f"no {name} with {labels}")

    def quiet(self) -> bool:
        """Whether no request is under way and all pages are free."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return all(self.metric(name) == 0 for name in names)

    def subservers(self) -> list[int]:
        """The processes of its models."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def close(self) -> None:
        self.client.close()
        for _ in range(2):  # the second ends what is still under way
            self.process.terminate()
            time.sleep(0.05)
        self.process.wait(SECONDS)


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def wait(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Waits until `condition` gives something; returns it."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return value

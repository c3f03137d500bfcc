"""The same, many times over: disconnects, malformed requests, kills, and memory meanwhile."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import Server, wait

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
ROUTES = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/tokenize", "/detokenize"]
ROUTES += ["/livez", "/readyz", "/metrics", "/openapi.json", "/", "/v1/models/%00", "/v1/models/tiny"]
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"]
VALUES: list[Any] = [None, True, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, 1e308, math.nan, math.inf]
VALUES += ["", "x", "\ud800", "\x00", "x" * 5000, [], [None], [[]], [1, "x"], {}, {"x": {}}, {"1": 5}, [[1, 2], [3]]]
FIELDS = ["model", "prompt", "messages", "stream", "stream_options", "n", "temperature", "top_k", "top_p", "logprobs"]
FIELDS += ["top_logprobs", "max_tokens", "min_tokens", "stop", "stop_token_ids", "logit_bias", "seed", "echo", "tools"]
FIELDS += ["best_of", "suffix", "response_format", "chat_template_kwargs", "cache_salt", "tokens", "metadata", "user"]


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def malformed(rng: random.Random) -> tuple[str, str, bytes]:
    """A request in which something is off: its method, path, and body."""
    path = rng.choice(ROUTES)
    method = rng.choice(METHODS) if rng.random() < 0.3 else "POST"
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    body |= {"max_tokens": 2}
    for _ in range(rng.randint(0, 3)):
        body[rng.choice(FIELDS)] = rng.choice(VALUES)
    content = json.dumps(body).encode()
    if rng.random() < 0.3:  # bytes changed, lost or doubled
        at = rng.randrange(len(content))
        noise = bytes(rng.randrange(256) for _ in range(rng.randint(0, 3)))
        content = content[:at] + noise + content[at + rng.randint(0, 3) :]
    return method, path, content


def test_malformed_requests(tiny: Server) -> None:
    rng = random.Random(1)
    process = tiny.process.pid
    for i in range(4000):
        if i == 1000:
            before = memory(process), descriptors(process)
        method, path, content = malformed(rng)
        headers = {"Content-Type": rng.choice(["application/json", "text/plain", ""])}
        reply = tiny.client.request(method, path, content=content, headers=headers)
        assert reply.status_code < 500, (method, path, content, reply.text)
    assert tiny.complete("the cat")["choices"]
    wait(tiny.quiet)
    assert memory(process) - before[0] < 8 << 20
    assert descriptors(process) <= before[1] + 2


def test_bytes_that_are_not_http(tiny: Server) -> None:
    rng = random.Random(2)
    host, _, port = tiny.url.removeprefix("http://").partition(":")
    start = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n" + b'{"prompt":"hi"}     '
    for _ in range(500):
        data = bytearray(start[: rng.randint(1, len(start))])
        for _ in range(rng.randint(0, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            reply = connection.recv(1 << 16)
            assert not reply.startswith(b"HTTP/1.1 5"), (data, reply)
    assert tiny.client.get("/livez").status_code == 200


def test_clients_that_leave_at_any_point(tiny: Server) -> None:
    key = {"Authorization": tiny.client.headers["Authorization"]}

    def leave(seed: int) -> None:
        rng = random.Random(seed)
        body = {"prompt": "the cat " * rng.randint(1, 40), "max_tokens": rng.randint(1, 200), "n": rng.randint(1, 2)}
        body |= {"ignore_eos": True, "stream": rng.random() < 0.5}
        seconds = httpx.Timeout(rng.uniform(0.001, 0.3), connect=30)
        try:
            with httpx.stream("POST", f"{tiny.url}/v1/completions", json=body, headers=key, timeout=seconds) as reply:
                for count, _ in enumerate(reply.iter_raw()):
                    if count == rng.randint(0, 20):
                        break
        except httpx.TimeoutException:
            pass

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(1000)))
    wait(tiny.quiet, 10)
    assert tiny.complete("the cat")["choices"]


def test_processes_that_are_killed_under_load(tiny_path: Path, start: Callable[..., Server]) -> None:
    """Every request is answered, or told that its process ended."""
    server = start(tiny_path, "--threads", "1").ready()
    want = server.complete("the cat", max_tokens=30, ignore_eos=True)["choices"]
    stop = threading.Event()
    outcomes: list[int] = []

    def ask() -> None:
        while not stop.is_set():
            reply = server.post("/v1/completions", prompt="the cat", max_tokens=30, temperature=0, ignore_eos=True)
            assert reply.status_code != 200 or reply.json()["choices"] == want
            outcomes.append(reply.status_code)

    with ThreadPoolExecutor(8) as pool:
        askers = [pool.submit(ask) for _ in range(8)]
        for _ in range(10):
            enough = len(outcomes) + 8
            wait(lambda enough=enough: len(outcomes) >= enough)
            os.kill(server.subservers()[0], signal.SIGKILL)
            server.ready()
        stop.set()
        for asker in askers:
            asker.result()
    assert set(outcomes) == {200, 503}
    assert server.metric("narrows_restarts_total") == 10
    assert server.quiet()

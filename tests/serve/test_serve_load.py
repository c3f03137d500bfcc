"""Under load, over HTTP: keys share the engine, and `priority` orders what one key asks."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from servers import Server, wait


@pytest.fixture
def narrow(start: Callable[..., Server], tiny_path: Any) -> Server:
    """One request at a time, of two keys."""
    keys = ("--api-key", "first", "--api-key", "second")
    stack = "scheduler=continuous:budget=64,max_num_seqs=1"
    return start(tiny_path, "--threads", "1", "--stack", stack, *keys, key="first").ready()


def order(server: Server, requests: list[dict[str, Any]]) -> list[str]:
    """Names of requests in the order in which the server ends them, all having come while it stood still."""
    [pid] = server.subservers()

    def send(name: str, key: str, **body: Any) -> None:
        body = {"prompt": f"the cat {name}", "temperature": 0, "ignore_eos": True, "max_tokens": 4, **body}
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": name}
        reply = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60)
        assert reply.status_code == 200, reply.text

    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(len(requests)) as pool:
        try:
            sent = []
            for request in requests:
                sent.append(pool.submit(send, **request))
                wait(lambda: _under_way(server) == len(sent))
        finally:
            os.kill(pid, signal.SIGCONT)
        for each in sent:
            each.result()

    def ended() -> list[str]:
        return re.findall(r'narrows.access: (\w\S*) "POST /v1/completions', server.log.read_text())

    wait(lambda: len(ended()) == len(requests))
    return ended()


def _under_way(server: Server) -> float:
    return server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting")


def test_a_keys_queue_does_not_hold_up_another_key(narrow: Server) -> None:
    """The first answer lasts while the others come out of the socket, where they were when the process stood still."""
    many = [{"name": f"many{i}", "key": "first", "max_tokens": 64} for i in range(12)]
    assert order(narrow, [*many, {"name": "one", "key": "second"}]).index("one") == 1


def test_lower_priority_is_earlier(narrow: Server) -> None:
    requests = [{"name": f"p{p}", "key": "first", "priority": p} for p in (7, 0, -7)]
    assert order(narrow, requests) == ["p-7", "p0", "p7"]


@pytest.mark.parametrize("value", [0.5, "1", True, 1 << 31, -(1 << 31) - 1, []])
def test_priorities_are_integers_of_32_bits(value: Any, tiny: Server) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
    ):
        reply = tiny.post(path, **body, priority=value)
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "priority", reply.text

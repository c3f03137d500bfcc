"""What would hold a server up, and may not: readers that stop, heads that do not come, a process that hangs, a full
disk, forms of answers that are too much work."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from servers import SECONDS, Server, wait

from narrows.serve.call import MAX_UNREAD, Call
from narrows.serve.errors import ApiError

FILE_BYTES = 32 << 10  # that a process may write to any one file
HOSTILE = ".*" * 30_000


@pytest.fixture(scope="module")
def strict(tiny_gguf: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Little patience, and a disk that is full: neither its log nor packed weights can be written in whole."""
    patience = ("--send-timeout", "1", "--body-timeout", "1", "--stall-timeout", "2")
    path = tiny_gguf(context=1 << 15, seed=5)
    full = ("sh", "-c", f'ulimit -f {FILE_BYTES // 512}; exec "$@"', "sh")
    server = Server(tmp_path_factory.mktemp("strict") / "log", path, "--threads", "1", *patience, under=full)
    yield server.ready()
    server.close()


def connect(server: Server, **options: Any) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = socket.socket()
    for option, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
    connection.settimeout(SECONDS)
    connection.connect((host, int(port)))
    return connection


def post(connection: socket.socket, body: dict[str, Any]) -> socket.socket:
    """Asks for a completion, and does not read."""
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"
    connection.sendall("\r\n".join((*head, f"Content-Length: {len(content)}", "", "")).encode() + content)
    return connection


def closed(connection: socket.socket) -> bool:
    """Reads until the other side has closed; False when there is more after a minute."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def is_open(connection: socket.socket) -> bool:
    """Whether the other side still has the connection, asked of the kernel: reading would bring it back to life."""
    port = connection.getsockname()[1]
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(int(remote.partition(":")[2], 16) == port and state == "01" for _, _, remote, state, *_ in rows)


def test_a_full_disk_costs_the_log_and_nothing_else(strict: Server) -> None:
    log = strict.log
    for _ in range(FILE_BYTES // 200):
        assert strict.client.get("/" + "x" * 200).status_code == 404
    assert log.stat().st_size == FILE_BYTES
    assert "is not kept for later runs" in log.read_text()
    assert strict.complete("the cat")["choices"]
    os.kill(strict.subservers()[0], signal.SIGKILL)
    wait(lambda: strict.client.get("/readyz").status_code == 503)
    strict.ready()
    assert strict.complete("the cat")["choices"]


def test_a_reader_that_stops_is_left(strict: Server) -> None:
    """Its connection is closed, its work is over, and meanwhile others are answered."""
    many = {"n": 16, "logprobs": 20, "max_tokens": 30_000, "ignore_eos": True, "stream": True}
    with connect(strict, SO_RCVBUF=4096) as reader:
        post(reader, {"prompt": "the cat", **many})
        wait(lambda: strict.metric("vllm:num_requests_running") == 16)
        assert strict.complete("the cat")["choices"]
        wait(strict.quiet)
        wait(lambda: not is_open(reader))  # its work may end before: what waits for it is bounded
        assert closed(reader)


def test_a_reader_too_far_behind_is_given_up() -> None:
    ended: list[object] = []

    class Jobs:
        def cancel(self, job: object) -> None:
            ended.append(job)

    call = Call(Jobs(), None)  # type: ignore[arg-type]
    call.jobs.append(job := object())  # type: ignore[arg-type]
    for i in range(MAX_UNREAD):
        assert not ended
        call.tell((i, None))  # type: ignore[arg-type]
    assert ended == [job]
    events = [call.events.get_nowait() for _ in range(call.events.qsize())]
    assert len(events) == MAX_UNREAD + 1 and isinstance(events[-1], ApiError)


@pytest.mark.parametrize(("sent", "old"), [(b"", False), (b"GET /livez HTTP/1.1\r\nHost: lo", False), (b"G", True)])
def test_heads_that_do_not_come_end_their_connection(sent: bytes, old: bool, strict: Server) -> None:
    with connect(strict) as connection:
        if old:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(sent)
        assert closed(connection)


def test_what_is_not_http_is_told_so_in_json(strict: Server) -> None:
    with connect(strict) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00 TLS, perhaps\r\n\r\n")
        reply = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
    assert reply.startswith("HTTP/1.1 400") and '"invalid_request_error"' in reply


def test_a_process_that_hangs_is_replaced(strict: Server) -> None:
    """What it had begun is told so, what was queued is answered by the next, and /livez is content."""
    restarts = strict.metric("narrows_restarts_total")
    given: dict[str, Any] = {"prompt": "the cat", "max_tokens": 30000, "ignore_eos": True}
    stream = strict.stream("/v1/completions", **given)
    next(stream)
    os.kill(strict.subservers()[0], signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(strict.complete, "the cat")
        *_, last = stream
        assert last["error"]["code"] == "unavailable"
        assert queued.result()["choices"]
    assert strict.metric("narrows_restarts_total") == restarts + 1
    assert strict.client.get("/livez").status_code == 200


def test_forms_that_are_much_work_hold_up_nobody_else(wide: Server) -> None:
    """Some are tried, some wait, those beyond are refused; what has no form, or a known one, goes on meanwhile."""

    def ask(pattern: str) -> Any:
        return wide.post("/v1/completions", prompt="x", max_tokens=4, structured_outputs={"regex": pattern})

    assert ask("a{2,3}b").status_code == 200
    forms = [{"prompt": "x", "structured_outputs": {"regex": HOSTILE + str(i)}} for i in range(20)]
    clients = [post(connect(wide), form) for form in forms]
    refused, _, _ = select.select(clients, [], [], SECONDS)
    for client in refused:
        assert client.recv(1 << 16).startswith((b"HTTP/1.1 429", b"HTTP/1.1 400"))
    assert ask("b" * 4).json()["error"]["code"] == "too_many_forms"
    assert ask("a{2,3}b").status_code == 200
    assert wide.post("/tokenize", prompt="the cat").status_code == 200
    assert wide.complete("the cat")["choices"]
    assert len(select.select(clients, [], [], 0)[0]) < len(clients)
    for client in clients:
        client.close()
    wait(lambda: ask("b" * 4).status_code == 200)

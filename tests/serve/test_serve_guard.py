"""Who may ask, from where, and how much."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import Server
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from narrows.serve.gateway import Caller
from narrows.serve.guard import Guard
from narrows.serve.settings import Settings, read_api_keys


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the caller's key and the length of the body."""
    caller: Caller = scope["caller"]
    body = (await receive())["body"]
    await PlainTextResponse(f"{caller.key} {len(body)}")(scope, receive, send)


def ask(settings: Settings, method: str = "GET", path: str = "/v1/models", **given: Any) -> httpx.Response:
    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(Guard(app, settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
            return await client.request(method, path, **given)

    return asyncio.run(go())


def code(reply: httpx.Response) -> tuple[int, str | None]:
    return reply.status_code, reply.json()["error"]["code"]


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", "Basic one", "one", "Bearer one,two", "Bearer é"]
)
def test_wrong_keys_are_refused(header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode()}
    reply = ask(Settings(api_keys=("one", "two")), headers=headers)
    assert code(reply) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"


def test_each_key_is_a_caller_of_its_own() -> None:
    settings = Settings(api_keys=("one", "two"))
    replies = [
        ask(settings, headers={"Authorization": f"{scheme} {key}"})
        for scheme, key in (("Bearer", "one"), ("bearer", "two"), ("Bearer", "one"))
    ]
    keys = [reply.text.split()[0] for reply in replies]
    assert keys[0] == keys[2] != keys[1] and "one" not in keys[0]


def test_only_health_and_the_page_need_no_key() -> None:
    settings = Settings(api_keys=("one",))
    for path in ("/livez", "/readyz", "/health", "/", "/page/app.js"):
        assert ask(settings, path=path).status_code == 200
    for path in ("/metrics", "/openapi.json", "/v1/narrows/status", "/page/none", "/livez/", "/livez//", "/LIVEZ"):
        assert ask(settings, path=path).status_code == 401, path


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "", "[::2]:8000"])
def test_names_of_elsewhere_are_refused(host: str) -> None:
    assert code(ask(Settings(), headers={"Host": host})) == (403, "host_not_allowed")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "my.host", "my.host.:80"])
def test_names_of_its_own_are_taken(host: str) -> None:
    assert ask(Settings(allowed_hosts=("my.host",)), headers={"Host": host}).status_code == 200


def test_a_server_on_all_interfaces_takes_any_name_unless_told() -> None:
    assert ask(Settings(host="0.0.0.0"), headers={"Host": "any.example"}).status_code == 200
    settings = Settings(host="0.0.0.0", allowed_hosts=("my.host",))
    assert ask(settings, headers={"Host": "any.example"}).status_code == 403


def test_pages_of_elsewhere_may_not_ask() -> None:
    for origin in ("https://evil.example", "null", "http://localhost:8001"):
        assert code(ask(Settings(), headers={"Origin": origin})) == (403, "origin_not_allowed")
    assert ask(Settings(), headers={"Origin": "http://localhost:8000"}).status_code == 200
    settings = Settings(cors_origins=("https://good.example",))
    assert ask(settings, headers={"Origin": "https://good.example"}).status_code == 200
    assert ask(settings, headers={"Origin": "https://good.example.evil"}).status_code == 403


def test_bodies_are_taken_up_to_the_limit_however_they_come() -> None:
    async def chunks(size: int) -> AsyncIterator[bytes]:
        for _ in range(size):
            yield b"x"

    settings = Settings(max_body_bytes=1024)
    for size, status in ((1024, 200), (1025, 413)):
        assert ask(settings, "POST", content=b"x" * size).status_code == status
        assert ask(settings, "POST", content=chunks(size)).status_code == status
    assert ask(settings, "POST", content=b"x" * 1024).text.split()[-1] == "1024"


def test_a_body_that_does_not_come_is_given_up() -> None:
    async def forever() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(60)

    assert code(ask(Settings(body_timeout=0.1), "POST", content=forever())) == (408, "body_timeout")


def test_requests_are_known_by_their_id(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "narrows.access"):
        given = ask(Settings(), headers={"X-Request-Id": "mine-1"})
        made = ask(Settings(), path="/x%0Ay", headers={"X-Request-Id": "not mine\t"})
    assert given.headers["x-request-id"] == "mine-1"
    assert re.fullmatch("[0-9a-f]{32}", made.headers["x-request-id"])
    assert caplog.messages[0].startswith('mine-1 "GET /v1/models" 200')
    assert len(caplog.messages) == 2 and "\n" not in caplog.messages[1]


def test_keys_come_from_options_a_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("# comment\n\n two \none\n")
    monkeypatch.setenv("NARROWS_API_KEY", "three, four")
    assert read_api_keys(["one"], file) == ("one", "two", "three", "four")
    file.write_text("# nothing\n")
    with pytest.raises(ValueError, match="no API keys"):
        read_api_keys([], file)
    with pytest.raises(ValueError, match="printable"):
        read_api_keys(["a b"], None)


def test_a_server_asks_for_its_keys(tiny: Server) -> None:
    assert httpx.get(f"{tiny.url}/readyz").status_code == 200
    assert httpx.get(f"{tiny.url}/v1/models").status_code == 401
    first = {"Authorization": "Bearer first-key"}
    assert httpx.get(f"{tiny.url}/v1/models", headers=first).status_code == 200


def test_a_cached_prompt_is_not_shared_between_keys(tiny: Server) -> None:
    prompt = "the secret of the cat in the hat " * 8

    def cached(key: str, **body: Any) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        json = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **body}
        reply = httpx.post(f"{tiny.url}/v1/completions", json=json, headers=headers).json()
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("first-key") == 0
    assert cached("first-key") > 0
    assert cached("second-key") == 0
    assert cached("first-key", cache_salt="mine") == 0
    assert cached("first-key", cache_salt="mine") > 0


def test_headers_without_end_are_cut_off(tiny: Server) -> None:
    host, _, port = tiny.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ")
        try:
            for _ in range(64):
                connection.sendall(b"x" * 4096)
            reply = connection.recv(100)
        except OSError:  # closed while we were writing
            return
        assert reply.startswith(b"HTTP/1.1 400")

"""Parts of the gateway by themselves: event streams, settings, the command line, the seam of features to come."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from typer.testing import CliRunner

from narrows.cli import app as command
from narrows.serve import events, features
from narrows.serve.app import create_app
from narrows.serve.errors import ApiError
from narrows.serve.events import ClientGone, EventStream, event, until_disconnect
from narrows.serve.forms import MAX_WAITING, Trials
from narrows.serve.gateway import Gateway
from narrows.serve.rates import RateLimit
from narrows.serve.settings import Settings


def test_a_silent_stream_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.02)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.sleep(0.1)
        yield b"data: 2\n\n"

    closed: list[bool] = []

    async def go() -> str:
        stream = EventStream(chunks(), lambda: closed.append(True))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(stream)) as client:
            return (await client.get("http://localhost/")).text

    first, *comments, second = asyncio.run(go()).strip().split("\n\n")
    assert (first, second) == ("data: 1", "data: 2")
    assert len(comments) >= 2 and all(comment.startswith(": ") for comment in comments)
    assert closed == [True]


def test_work_ends_when_its_client_leaves() -> None:
    outcome: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            outcome.append("cancelled")

    async def receive() -> dict[str, str]:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        asyncio.run(until_disconnect(receive, work()))
    assert outcome == ["cancelled"]


def test_cors_is_for_the_origins_that_were_named() -> None:
    ask = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST"}

    async def preflight(settings: Settings, **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(create_app(Gateway(settings, [], lambda message: None)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.options("/v1/models", headers=ask | headers)

    off = asyncio.run(preflight(Settings()))
    assert off.is_error and "access-control-allow-origin" not in off.headers
    settings = Settings(cors_origins=("https://good.example",), api_keys=("key",))
    good = asyncio.run(preflight(settings))
    assert good.status_code == 200 and good.headers["access-control-allow-origin"] == "https://good.example"
    assert "access-control-allow-origin" not in asyncio.run(preflight(settings, Origin="https://evil.example")).headers


@pytest.mark.parametrize("name", ["functions", "previous_response_id", "reasoning"])
def test_what_is_not_there_is_refused_only_when_asked_for(name: str) -> None:
    for nothing in (None, *features._NOTHING[name]):
        features.check(SimpleNamespace(**{name: nothing}))
    with pytest.raises(ApiError, match=f"{name} is not supported") as error:
        features.check(SimpleNamespace(**{name: {"effort": "high"}}))
    assert (error.value.status, error.value.param) == (400, name)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["a", "a"], "two models would be called 'a'"),
        (["a", "b", "--served-model-name", "x"], "2 models but 1"),
        (["a", "--stack", "kv=int3"], "int3"),
        (["a", "--api-key", "with space"], "printable"),
        (["no-such-model"], "no model 'no-such-model'"),
    ],
)
def test_bad_options_are_errors_before_anything_starts(args: list[str], words: str) -> None:
    result = CliRunner().invoke(command, ["serve", *args])
    assert isinstance(result.exception, ValueError) and words in str(result.exception)


def test_a_file_gives_options_and_the_command_line_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from narrows.serve import server

    asked: list[Settings] = []
    monkeypatch.setattr(server, "run", lambda settings, models: asked.append(settings))
    monkeypatch.setattr("narrows.models.hub.resolve", lambda name: Path(name))
    file = tmp_path / "serve.toml"
    file.write_text('models = ["a", "b"]\nport = 1\nmax-body-bytes = 2048\napi-key = ["k"]\nstall_timeout = 5\n')
    result = CliRunner().invoke(command, ["serve", "--config", str(file), "--port", "2"])
    assert result.exception is None, result.output
    [settings] = asked
    assert (settings.port, settings.max_body_bytes, settings.api_keys) == (2, 2048, ("k",))
    assert settings.stall_timeout == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "no option 'prot' (did you mean 'port'?)"),
        ("[port]\nx = 1", "port is a table"),
        ("port =", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_named(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    result = CliRunner().invoke(command, ["serve", "a", "--config", str(file)])
    assert isinstance(result.exception, ValueError) and words in str(result.exception)
    assert str(file) in str(result.exception)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.startswith("narrows.serve.") and m != "narrows.serve.cli"]:
        monkeypatch.delitem(sys.modules, name)
    import narrows.serve

    monkeypatch.delattr(narrows.serve, "server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(command, ["serve", "a"])
    assert isinstance(result.exception, ValueError)
    assert "pip install 'narrows[serve]'" in str(result.exception)


def test_an_address_in_use_is_an_error(tiny_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(command, ["serve", str(tiny_path), "--port", str(port)])
    assert isinstance(result.exception, OSError) and f"port {port}" in str(result.exception)


def test_each_key_has_its_own_rate() -> None:
    now = 0.0
    rates = RateLimit(60, clock=lambda: now)
    for _ in range(60):
        rates.take("a")
    with pytest.raises(ApiError, match="60 requests a minute") as refused:
        rates.take("a")
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    rates.take("b")
    now = 2.0  # two more
    rates.take("a")
    rates.take("a")
    with pytest.raises(ApiError):
        rates.take("a")
    now = 1e6  # a minute's worth is kept, and no more
    for _ in range(60):
        rates.take("a")
    with pytest.raises(ApiError):
        rates.take("a")
    for _ in range(1000):
        RateLimit(0).take("a")


def test_a_keys_many_forms_leave_room_for_others() -> None:
    gate = threading.Event()

    async def go() -> None:
        trials = Trials()
        waiting = [asyncio.create_task(trials.run("a", gate.wait)) for _ in range(MAX_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="new forms") as refused:
            await trials.run("a", gate.wait)
        assert refused.value.status == 429
        other = asyncio.create_task(trials.run("b", gate.wait))
        waiting[-1].cancel()  # its client left
        await asyncio.sleep(0)
        last = asyncio.create_task(trials.run("a", gate.wait))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*waiting[:-1], other, last)

    asyncio.run(go())


def test_requests_beyond_the_rate_are_refused_but_health_is_told() -> None:
    async def ask() -> list[int]:
        app = create_app(Gateway(Settings(requests_per_minute=2), [], lambda message: None))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            paths = ("/livez", "/v1/models", "/v1/models", "/v1/models", "/livez")
            return [(await client.get(path)).status_code for path in paths]

    assert asyncio.run(ask()) == [200, 200, 200, 429, 200]


def test_an_event_is_one_line_to_whoever_splits_it() -> None:
    content = {"text": "".join(map(chr, (*range(0x20), 0x85, 0xA0, 0x2028, 0x2029, 0x1F600)))}
    head, data, *rest = event(content, "named").decode().splitlines()
    assert (head, rest) == ("event: named", [""])
    assert json.loads(data.removeprefix("data: ")) == content

"""`narrows bench serve` without a server: traces, prompts, a client on its own clock, figures worked by hand."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from narrows.measure.load.arrivals import Arrival, TraceError, find_trace, poisson, read_trace, shaped
from narrows.measure.load.client import BenchError, Outcome, Target, calibrate, errors, find_model, run
from narrows.measure.load.figures import is_good, parse_slo, spread, summary
from narrows.measure.load.texts import Texts

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.2319600,3180,0
2023-11-16 18:18:03.9799600,5,8
"""
MOONCAKE = [
    {"timestamp": 500, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 2500, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 9]},
]


# --- traces and prompts ---


def test_azure_traces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    found = read_trace(path)
    assert [(round(a.at, 3), a.num_prompt, a.num_output, a.blocks) for a in found] == [
        (0, 4808, 10, None),
        (0.252, 3180, 1, None),  # a request writes a token at least
        (60, 5, 8, None),
    ]
    assert read_trace(path, 2) == found[:2]


def test_mooncake_traces_are_read_packed_or_not(tmp_path: Path) -> None:
    text = "\n".join(map(json.dumps, MOONCAKE))
    (tmp_path / "trace.jsonl").write_text(text)
    (tmp_path / "trace.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    found = read_trace(tmp_path / "trace.jsonl")
    assert found == read_trace(tmp_path / "trace.jsonl.gz")
    assert found == [Arrival(0, 1300, 5, (0, 1, 2)), Arrival(2, 1100, 7, (0, 1, 9))]


@pytest.mark.parametrize(
    "text",
    ["", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "a,b\n1,2\n", AZURE.replace("4808", "many"), "\x00", AZURE * 2],
)
def test_what_is_no_trace_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"trace\.csv"):
        read_trace(path)


@pytest.mark.parametrize("text", ["[]", "{}", "nonsense", json.dumps(MOONCAKE[0] | {"hash_ids": "x"})])
def test_what_is_no_json_trace_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(TraceError, match=r"trace\.jsonl"):
        read_trace(path)
    path.write_bytes(b"not gzip")
    with pytest.raises(TraceError, match=r"trace\.jsonl"):
        read_trace(path)


def test_traces_have_short_names(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="--data"):
        find_trace("azure-conv", None)
    with pytest.raises(TraceError, match="there is no trace"):
        find_trace("azure-conv", tmp_path)
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "synthetic_trace.jsonl").touch()
    assert find_trace("mooncake-synthetic", tmp_path).is_file()


def test_loads_are_scaled() -> None:
    [_, last] = shaped([Arrival(0, 100, 10), Arrival(8, 3, 1, (1,))], scale=4, lengths=0.25)
    assert last == Arrival(2, 1, 1, (1,), 128)


def test_poisson_arrivals_are_drawn_once_per_seed() -> None:
    requests = [Arrival(i, i + 1, 1) for i in range(4000)]
    drawn = poisson(requests, 2.0, seed=3)
    assert drawn == poisson(requests, 2.0, seed=3) != poisson(requests, 2.0, seed=4)
    gaps = np.diff([a.at for a in drawn])
    assert drawn[0].at == 0 and [a.num_prompt for a in drawn] == [a.num_prompt for a in requests]
    assert abs(gaps.mean() - 0.5) < 0.03 and abs(gaps.std() - 0.5) < 0.05  # of an exponential distribution
    assert {a.at for a in poisson(requests, float("inf"), seed=3)} == {0}


def test_prompts_share_what_the_trace_says_and_nothing_else() -> None:
    texts = Texts(seed=1, tokens_per_word=2)
    one, two = (texts.prompt(Arrival(0, 1000, 1), i).split() for i in (0, 1))
    assert len(one) == len(two) == 500
    assert sum(a == b for a, b in zip(one, two, strict=True)) < 30  # by chance
    a = texts.prompt(Arrival(0, 1300, 5, (0, 1, 2)), 0)
    b = texts.prompt(Arrival(2, 1100, 7, (0, 1, 9)), 1)
    assert (len(a.split()), len(b.split())) == (650, 550)
    assert a.split()[:512] == b.split()[:512] and a.split()[512:516] != b.split()[512:516]
    assert len(texts.prompt(Arrival(0, 1300, 5, (7,)), 0).split()) == 650  # fewer blocks than the length takes
    assert (
        a
        == Texts(1, 2).prompt(Arrival(0, 1300, 5, (0, 1, 2)), 5)
        != Texts(2, 2).prompt(Arrival(0, 1300, 5, (0, 1, 2)), 0)
    )


# --- the client, on a clock that only the server moves ---


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)  # what was begun before begins before time goes on
        self.now += seconds


class Slow(httpx.AsyncByteStream):
    """A stream whose parts come after known times."""

    def __init__(self, clock: Clock, parts: Sequence[tuple[float, bytes]]) -> None:
        self._clock, self._parts = clock, parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for seconds, part in self._parts:
            self._clock.now += seconds
            yield part


def event(text: str | None = None, **more: Any) -> bytes:
    choices = [] if text is None else [{"index": 0, "text": text}]
    return f"data: {json.dumps({'choices': choices, **more})}\n\n".encode()


USAGE = event(usage={"prompt_tokens": 7, "completion_tokens": 3})
DONE = b"data: [DONE]\n\n"


def send(
    parts: Sequence[tuple[float, bytes]] | Exception, arrivals: Sequence[Arrival], status: int = 200
) -> list[Outcome]:
    clock = Clock()
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        if isinstance(parts, Exception):
            raise parts
        return httpx.Response(status, stream=Slow(clock, parts))

    async def go() -> list[Outcome]:
        target = Target("http://server", "m")
        async with target.client(httpx.MockTransport(answer)) as client:
            prompts = [f"prompt {i}" for i in range(len(arrivals))]
            return await run(client, target, arrivals, prompts, clock=clock, sleep=clock.sleep)

    outcomes = asyncio.run(go())
    assert [body["prompt"] for body in bodies] == [f"prompt {i}" for i in range(len(arrivals))]
    assert all(body["stream"] and body["ignore_eos"] and body["stream_options"]["include_usage"] for body in bodies)
    return outcomes


def test_a_slow_server_has_the_times_it_took() -> None:
    """First text after 2 s, an empty piece that is none, gaps of 0.5 and 0.25 s, and 0.25 s to the end."""
    parts = [(2.0, event("a")), (0.1, event("")), (0.4, event("b")), (0.25, event("c")), (0.25, USAGE + DONE)]
    [outcome] = send(parts, [Arrival(0, 7, 3)])
    assert outcome.error is None and (outcome.num_prompt, outcome.num_output) == (7, 3)
    found = summary([outcome], {"ttft": 2.0, "tpot": 0.375})
    assert {name: values["max"] for name, values in found["times"].items()} == pytest.approx(
        {"ttft": 2.0, "tpot": 0.375, "itl": 0.5, "e2e": 3.0}
    )
    assert (found["seconds"], found["goodput"], found["output_tokens_per_second"]) == pytest.approx((3, 1 / 3, 1))


def test_an_event_may_come_in_pieces_and_several_at_once() -> None:
    whole = event("a") + b": a comment\n\n" + event("b")
    [outcome] = send([(1.0, whole[:9]), (1.0, whole[9:]), (1.0, USAGE), (0.0, DONE)], [Arrival(0, 1, 1)])
    assert outcome.pieces == [2.0, 2.0] and outcome.num_output == 3


def test_requests_are_sent_when_they_are_due() -> None:
    outcomes = send([(0.0, event("a") + DONE)], [Arrival(at, 1, 1) for at in (0.0, 1.5, 4.0)])
    assert [outcome.due for outcome in outcomes] == [outcome.sent for outcome in outcomes] == [0, 1.5, 4]
    assert [outcome.num_output for outcome in outcomes] == [1, 1, 1]  # counted here, as the server did not


@pytest.mark.parametrize(
    ("parts", "status", "error"),
    [
        ([(0.0, b"{}")], 429, "HTTP 429"),
        ([(1.0, event("a"))], 200, "the stream was cut"),
        ([(1.0, event("a") + b'data: {"error": {"code": "unavailable"}}\n\n')], 200, "error event: unavailable"),
        ([(1.0, b"data: nonsense\n\n")], 200, "a reply that is no completion"),
        ([(1.0, b"data: []\n\n")], 200, "a reply that is no completion"),
        ([(1.0, DONE)], 200, "no answer"),
        (httpx.ReadTimeout("late"), 200, "timeout"),
        (httpx.ConnectError("nobody"), 200, "ConnectError"),
    ],
)
def test_what_fails_is_counted_by_kind(parts: Any, status: int, error: str) -> None:
    outcomes = send(parts, [Arrival(0, 1, 1)] * 2, status)
    assert errors(outcomes) == {error: 2}
    found = summary(outcomes, {})
    assert (found["completed"], found["good"], found["goodput"]) == (0, 0, 0)
    assert all(values is None for values in found["times"].values())


def test_words_are_measured_in_tokens() -> None:
    async def go(reply: httpx.Response) -> float:
        texts, target = Texts(0), Target("http://server/v1/", "m")
        async with target.client(httpx.MockTransport(lambda request: reply)) as client:
            await calibrate(client, target, texts)
        return texts.tokens_per_word

    usage = event("a", usage={"prompt_tokens": 96, "completion_tokens": 2})
    assert asyncio.run(go(httpx.Response(200, content=usage + DONE))) == 1.5
    with pytest.raises(BenchError, match="HTTP 401"):
        asyncio.run(go(httpx.Response(401)))


def test_the_model_is_the_servers_first() -> None:
    async def go(reply: httpx.Response, name: str = "") -> tuple[str, str]:
        async with Target("http://server", "").client(httpx.MockTransport(lambda request: reply)) as client:
            return await find_model(client, name)

    assert asyncio.run(go(httpx.Response(200, json={"data": [{"id": "a"}, {"id": "b"}]}))) == ("a", "")
    assert asyncio.run(go(httpx.Response(200, json={"data": [{"id": "a", "owned_by": "me"}]}))) == ("a", "me")
    for reply in (httpx.Response(404), httpx.Response(200, json={"data": []}), httpx.Response(200, text="x")):
        with pytest.raises(BenchError, match="--model-name"):
            asyncio.run(go(reply))
        assert asyncio.run(go(reply, "c")) == ("c", "")
    several = httpx.Response(200, json={"data": [{"id": "a"}, {"id": "b", "owned_by": "me"}]})
    assert (asyncio.run(go(several, "b")), asyncio.run(go(several, "c"))) == (("b", "me"), ("c", ""))


# --- figures ---


def outcome(ttft: float, gaps: Sequence[float] = (), error: str | None = None) -> Outcome:
    pieces = [10 + ttft, *(10 + ttft + np.cumsum(gaps)).tolist()] if gaps else [10 + ttft]
    return Outcome(10, 10, pieces, pieces[-1], 5, len(pieces), error)


def test_percentiles_are_linear_between_ranks() -> None:
    found = spread([float(i) for i in range(101)])
    assert found == {"mean": 50, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
    assert spread([1.0, 2.0]) == pytest.approx(
        {"mean": 1.5, "p50": 1.5, "p90": 1.9, "p95": 1.95, "p99": 1.99, "max": 2}
    )
    assert spread([]) is None


def test_goodput_counts_what_kept_every_bound() -> None:
    slo = parse_slo("ttft=2,tpot=0.1")
    outcomes = [
        outcome(1.0, [0.1] * 10),
        outcome(2.5, [0.05] * 10),  # first token too late
        outcome(1.0, [0.05] * 9 + [2.0]),  # tokens too slow
        outcome(1.0),  # one token
        outcome(0.1, [0.01], error="timeout"),
    ]
    assert [is_good(o, {**slo, "tpot": slo["tpot"] + 1e-9}) for o in outcomes] == [True, False, False, True, False]
    assert summary(outcomes, {"e2e": 1.5})["good"] == 1


@pytest.mark.parametrize("text", ["ttft", "ttft=", "ttft=0", "ttft=-1", "ttft=nan", "speed=1", "=1"])
def test_bounds_are_of_known_times_and_above_0(text: str) -> None:
    with pytest.raises(ValueError, match="--slo"):
        parse_slo(text)
    assert parse_slo("") == {}


def test_latencies_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from narrows.measure.load.figures import journal
    from narrows.measure.plot import load

    outcomes = [outcome(1.0, [0.1] * 10), outcome(1.0), outcome(0.1, error="timeout")]
    found = summary(outcomes, {"ttft": 2.0})
    load({"system": "narrows", "server": "m", "requests_sent": journal(outcomes), **found}, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")

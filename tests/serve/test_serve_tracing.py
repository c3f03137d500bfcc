"""Traces: a span a request in the caller's trace, its phases inside, and a collector that is away costs nothing."""

from __future__ import annotations

import asyncio
import gzip
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from servers import Server, wait
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from narrows.sampling import SamplingParams
from narrows.serve import wire
from narrows.serve.call import Job
from narrows.serve.gateway import Caller
from narrows.serve.guard import Guard
from narrows.serve.settings import Settings
from narrows.serve.tracing import Exchange, Tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Call:
    """What a caller keeps of a call: its jobs."""

    def __init__(self, *jobs: Job) -> None:
        self.jobs = list(jobs)


def job(position: int, arrival: float, started: float | None, first: float | None, last: float | None) -> Job:
    made = Job(wire.Submit("x", [1], SamplingParams(), 0), position, None, 1, arrival)  # type: ignore[arg-type]
    made.started, made.first_token, made.last_token = started, first, {} if last is None else {0: last}
    return made


def record(*jobs: Job, status: int = 200, **headers: str) -> dict[str, Any]:
    """Finished spans by name, of a request from second 10 to second 20."""
    exporter = InMemorySpanExporter()
    tracing = Tracing("http://nowhere", exporter)
    caller = Caller("id-1", log={"model": "m", "prompt_tokens": 7, "completion_tokens": 3})
    caller.calls.append(Call(*jobs))  # type: ignore[arg-type]
    tracing.record(Exchange("POST", "/v1/completions", headers, status, 10.0, 20.0), caller)
    tracing.close()
    return {f"{s.name}{s.attributes.get('narrows.prompt', '')}": s for s in exporter.get_finished_spans()}


def seconds(span: Any, origin: Any) -> tuple[float, float]:
    """When a span began and ended, after `origin` did, which is second 10."""
    return tuple(round((t - origin.start_time) / 1e9 + 10, 6) for t in (span.start_time, span.end_time))  # type: ignore[return-value]


def test_phases_lie_in_the_requests_span_with_the_engines_times() -> None:
    spans = record(job(0, 11, 12.5, 14, 19), job(1, 11, 14, 15, 15))
    whole = spans.pop("POST /v1/completions")
    assert seconds(whole, whole) == (10, 20)
    assert {name: seconds(span, whole) for name, span in spans.items()} == {
        "queue0": (11, 12.5),
        "prefill0": (12.5, 14),
        "decode0": (14, 19),
        "queue1": (11, 14),
        "prefill1": (14, 15),
        "decode1": (15, 15),
    }
    assert all(span.parent.span_id == whole.context.span_id for span in spans.values())
    assert whole.parent is None and whole.status.is_ok is not False
    assert whole.attributes == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "narrows.request_id": "id-1",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
    }


def test_what_was_cut_short_ends_with_its_request() -> None:
    spans = record(job(0, 11, None, None, None), job(1, 11, 12, None, None), status=504)
    whole = spans["POST /v1/completions"]
    assert {name: seconds(span, whole) for name, span in spans.items() if span is not whole} == {
        "queue0": (11, 20),
        "queue1": (11, 12),
        "prefill1": (12, 20),
    }
    assert not whole.status.is_ok


def test_a_callers_trace_is_taken_up() -> None:
    span = record(traceparent=TRACEPARENT)["POST /v1/completions"]
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT
    assert record(traceparent=TRACEPARENT[:-2] + "00") == {}  # which it says is not sampled


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-01", TRACEPARENT * 1000, "ff-" + TRACEPARENT[3:]])
def test_what_is_no_trace_begins_a_new_one(header: str) -> None:
    assert record(traceparent=header)["POST /v1/completions"].parent is None


def test_the_guard_traces_every_request_but_those_of_health() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing("http://nowhere", exporter)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("x", 503 if scope["path"] == "/bad" else 200)(scope, receive, send)

    async def go() -> None:
        transport = httpx.ASGITransport(Guard(app, Settings(api_keys=("one",)), tracing))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path, key in (("/livez", ""), ("/metrics", "one"), ("/v1/models", "wrong"), ("/bad", "one")):
                await client.get(path, headers={"Authorization": f"Bearer {key}"})

    asyncio.run(go())
    tracing.close()
    found = [(s.name, s.attributes["http.response.status_code"]) for s in exporter.get_finished_spans()]
    assert found == [("GET /metrics", 200), ("GET /v1/models", 401), ("GET /bad", 503)]


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://x:1", "http://", "x"])
def test_the_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(ValueError, match="--otlp-endpoint"):
        Tracing(endpoint)


def test_missing_packages_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ValueError, match=r"pip install 'narrows\[otel\]'"):
        Tracing("http://localhost:4318")


# --- a real server and a real collector ---


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Where it listens, and the spans it was sent."""
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            sent = ExportTraceServiceRequest.FromString(body)
            if self.path == "/v1/traces":
                spans.extend(s for r in sent.resource_spans for scope in r.scope_spans for s in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", spans
    server.shutdown()
    server.server_close()


def test_a_server_sends_its_traces(
    collector: tuple[str, list[Any]], start: Callable[..., Server], tiny_path: Path
) -> None:
    url, spans = collector
    server = start(tiny_path, "--threads", "1", "--otlp-endpoint", url).ready()
    body = {"prompt": "the cat", "max_tokens": 8, "temperature": 0, "ignore_eos": True, "stream": True}
    reply = server.client.post("/v1/completions", json=body, headers={"traceparent": TRACEPARENT})
    assert reply.status_code == 200
    server.post("/v1/embeddings", input=["x", "y"])
    server.process.terminate()  # the last spans are sent on the way out
    server.process.wait(30)
    mine = {s.name: s for s in spans if s.trace_id.hex() == TRACE}
    assert mine.keys() == {"POST /v1/completions", "queue", "prefill", "decode"}
    whole = mine.pop("POST /v1/completions")
    assert whole.parent_span_id.hex() == PARENT
    assert {a.key: a.value.int_value for a in whole.attributes}["gen_ai.usage.output_tokens"] == 8
    order = [mine[name] for name in ("queue", "prefill", "decode")]
    assert whole.start_time_unix_nano <= order[0].start_time_unix_nano
    assert all(a.end_time_unix_nano == b.start_time_unix_nano for a, b in pairwise(order))
    assert order[2].end_time_unix_nano <= whole.end_time_unix_nano
    assert sum(s.name == "prefill" for s in spans) == 3


def test_a_collector_that_is_away_costs_nothing(start: Callable[..., Server], tiny_path: Path) -> None:
    server = start(tiny_path, "--threads", "1", "--otlp-endpoint", "http://127.0.0.1:9").ready()
    for _ in range(20):
        server.complete("x")
    assert wait(server.quiet)
    server.process.terminate()
    assert server.process.wait(30) == 0

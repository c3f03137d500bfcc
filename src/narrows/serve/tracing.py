"""OpenTelemetry: a span for each request, and within it where its prompts waited, were read and were answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from .gateway import Caller

MAX_PROMPTS = 16  # of a request, that have spans of their own
CLOSE_SECONDS = 2.0  # to bring out the last spans
_LOGGED = {  # by the access log's name; the semantic conventions for generative models have the other
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response. Times are monotonic seconds."""

    method: str
    path: str
    headers: Mapping[str, str]
    status: int
    began: float
    ended: float


class Tracing:
    """Sends spans in the background; a collector that is slow or away costs spans, never a request.

    Raises ValueError when the packages are missing or the endpoint is no URL.
    """

    def __init__(self, endpoint: str, exporter: Any = None) -> None:
        """`endpoint` is that of a collector for OTLP over HTTP; a test may bring an `exporter` of its own."""
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--otlp-endpoint is {endpoint!r}; it must be a URL such as http://localhost:4318")
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError:
            raise ValueError("--otlp-endpoint needs OpenTelemetry: pip install 'narrows[otel]'") from None
        if parts.path in ("", "/"):
            endpoint = f"{endpoint.rstrip('/')}/v1/traces"
        resource = Resource.create({"service.name": "narrows", "service.version": version("narrows")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("narrows.serve")
        self._epoch = time.time_ns() - time.monotonic_ns()

    def record(self, exchange: Exchange, caller: Caller) -> None:
        """A request that has ended, as part of the caller's trace if it sent a `traceparent`."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        attributes: dict[str, Any] = {
            "http.request.method": exchange.method,
            "url.path": exchange.path[:200],
            "http.response.status_code": exchange.status,
            "narrows.request_id": caller.request_id,
            **{name: caller.log[key] for key, name in _LOGGED.items() if key in caller.log},
        }
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.path[:200]}",
            context=TraceContextTextMapPropagator().extract(exchange.headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=self._nanoseconds(exchange.began),
        )
        if exchange.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)
        for call in caller.calls:
            for job in call.jobs[:MAX_PROMPTS]:
                last = max(job.last_token.values(), default=None)
                times = {"queue": job.arrival, "prefill": job.started, "decode": job.first_token, "": last}
                self._phases(times, exchange.ended, {"narrows.prompt": job.position}, inside)
        span.end(end_time=self._nanoseconds(exchange.ended))

    def _phases(self, times: Mapping[str, float | None], ended: float, attributes: Any, inside: Any) -> None:
        """A span for each phase that was reached, up to the next or to the end of the request."""
        for (name, start), (_, end) in pairwise(times.items()):
            if start is not None:
                begin, close = self._nanoseconds(start), self._nanoseconds(ended if end is None else end)
                self._tracer.start_span(name, inside, attributes=attributes, start_time=begin).end(end_time=close)

    def _nanoseconds(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._epoch

    def close(self) -> None:
        """Sends what is left, for a short while: a collector that is away must not hold up the end."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

"""What /metrics shows: vLLM's names where one exists, so that dashboards carry over, and ours beside them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from . import wire
    from .backend import Backend
    from .call import Job

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
_TOKENS = tuple(2**i for i in range(18))
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From a request's arrival to its first token.", _SECONDS),
    "inter_token_latency_seconds": ("Between consecutive tokens of an answer.", _SECONDS),
    "e2e_request_latency_seconds": ("From a request's arrival to the end of an answer.", _SECONDS),
    "request_queue_time_seconds": ("From a request's arrival to the first step that reads it.", _SECONDS),
    "request_prefill_time_seconds": ("From the first step that reads a request to its first token.", _SECONDS),
    "request_decode_time_seconds": ("From an answer's first token to its last.", _SECONDS),
    "request_prompt_tokens": ("Tokens of a prompt.", _TOKENS),
    "request_generation_tokens": ("Tokens of an answer.", _TOKENS),
}
_COUNTERS = {
    "vllm:prompt_tokens": "Tokens of prompts that were read or found in the prefix cache.",
    "vllm:generation_tokens": "Tokens produced.",
    "vllm:prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "vllm:prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "narrows_requests_refused": "Requests refused because the queue was full.",
}
_LEDGER = {  # of the engine
    "narrows_steps": ("num_steps", "Steps of the engine."),
    "narrows_read_tokens": ("num_read", "Tokens that went through the model."),
    "narrows_weight_bytes": ("weight_bytes", "Bytes of weights read."),
    "narrows_kv_bytes": ("kv_bytes", "Bytes of KV cache read."),
    "narrows_forward_seconds": ("forward_seconds", "Time in the native forward."),
    "narrows_step_seconds": ("step_seconds", "Time in steps, the forward included."),
    "vllm:num_preemptions": ("num_preemptions", "Requests that gave their pages back and began again."),
    "vllm:spec_decode_num_drafts": ("drafts.num_drafts", "Drafts tested."),
    "vllm:spec_decode_num_draft_tokens": ("drafts.num_drafted", "Tokens guessed."),
    "vllm:spec_decode_num_accepted_tokens": ("drafts.num_accepted", "Guessed tokens that were kept."),
    "narrows_draft_seconds": ("drafts.seconds", "Time spent guessing."),
}


class Metrics:
    """The registry of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        label = ("model_name",)
        self.histograms = {
            name: Histogram(f"vllm:{name}", text, label, buckets=buckets, registry=self.registry)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self.counters = {name: Counter(name, text, label, registry=self.registry) for name, text in _COUNTERS.items()}
        self.success = Counter(
            "vllm:request_success",
            "Answers that ended, by reason.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )

    def watch(self, backends: Sequence[Backend]) -> None:
        """Shows the state of backends at each scrape."""
        self.registry.register(_Engines(backends))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class ModelMetrics:
    """What happens to the requests of one model. Times are intervals on this process's monotonic clock."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._observe = {key: h.labels(name).observe for key, h in metrics.histograms.items()}
        self._count = {key: c.labels(name).inc for key, c in metrics.counters.items()}
        self._success, self._name = metrics.success, name
        for reason in ("stop", "length", "abort", "error"):
            metrics.success.labels(name, reason)

    def refused(self) -> None:
        self._count["narrows_requests_refused"]()

    def started(self, job: Job) -> None:
        assert job.started is not None
        self._observe["request_queue_time_seconds"](job.started - job.arrival)

    def advanced(self, job: Job, delta: wire.Delta, now: float) -> None:
        """New tokens of an answer; called before the job knows of them."""
        assert job.started is not None
        if not job.last_token:  # the first of all answers
            num_prompt = len(job.submit.prompt)
            self._count["vllm:prompt_tokens"](num_prompt)
            self._count["vllm:prefix_cache_queries"](num_prompt)
            self._count["vllm:prefix_cache_hits"](delta.num_cached)
            self._observe["request_prompt_tokens"](num_prompt)
            self._observe["request_prefill_time_seconds"](now - job.started)
            if delta.token_ids:  # an embedding has none
                self._observe["time_to_first_token_seconds"](now - job.arrival)
        elif delta.index in job.last_token:
            gap = (now - job.last_token[delta.index]) / len(delta.token_ids)
            for _ in delta.token_ids:
                self._observe["inter_token_latency_seconds"](gap)
        self._count["vllm:generation_tokens"](len(delta.token_ids))
        if delta.ledger is not None:
            num_output, speed = delta.ledger["output_tokens"] or 0, delta.ledger["tokens_per_second"]
            self._observe["request_generation_tokens"](num_output)
            self._observe["e2e_request_latency_seconds"](now - job.arrival)
            if speed:
                self._observe["request_decode_time_seconds"]((num_output - 1) / speed)

    def ended(self, job: Job, reason: str, num_answers: int) -> None:
        self._success.labels(self._name, reason).inc(num_answers)


class _Engines(Collector):
    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = backends

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        now = time.monotonic()
        gauges: dict[str, tuple[str, list[float]]] = {
            "vllm:num_requests_running": ("Answers being worked on.", []),
            "vllm:num_requests_waiting": ("Answers waiting for their first step.", []),
            "vllm:kv_cache_usage_perc": ("Share of KV pages in use, 0 to 1.", []),
            "narrows_ready": ("1 when the model's process is ready.", []),
            "narrows_progress_age_seconds": ("Since the engine was last seen to go on.", []),
        }
        for backend in self._backends:
            report, limits = backend.report, backend.limits
            running, waiting = backend.num_running, backend.num_waiting
            used = 1 - report.num_free_pages / limits.num_pages if report and limits else 0.0
            values = (running, waiting, used, backend.state == "ready", now - backend.progress)
            for (_, seen), value in zip(gauges.values(), values, strict=True):
                seen.append(float(value))
        for name, (text, values) in gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=("model_name",))
            for backend, value in zip(self._backends, values, strict=True):
                gauge.add_metric((backend.name,), value)
            yield gauge
        restarts = CounterMetricFamily("narrows_restarts", "Processes that were replaced.", labels=("model_name",))
        for backend in self._backends:
            restarts.add_metric((backend.name,), backend.num_restarts)
        yield restarts
        totals = {backend.name: backend.totals for backend in self._backends}
        for name, (field, text) in _LEDGER.items():
            counter, total = CounterMetricFamily(name, text, labels=("model_name",)), attrgetter(field)
            for model, ledger in totals.items():
                counter.add_metric((model,), total(ledger))
            yield counter

"""What the engines are doing, in figures: GET /v1/narrows/status, once or as they change. The web page shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ..measure.bandwidth import known
from .backend import Backend
from .errors import ApiError
from .events import EventStream, event
from .gateway import Caller, Gateway

router = APIRouter()
INTERVAL_SECONDS = 0.25
MAX_WATCHERS = 64


@router.get("/v1/narrows/status")
async def status(request: Request) -> JSONResponse:
    """State, limits, queue and totals of each model, and the bandwidth that bounds it."""
    return JSONResponse(figures(request.app.state.gateway, known))


@router.get("/v1/narrows/status/stream", include_in_schema=False)  # it has no end that a program could wait for
async def stream(request: Request) -> Response:
    """The same as server-sent events: at once, and whenever something changed, four times a second at most."""
    gateway: Gateway = request.app.state.gateway
    caller: Caller = request.scope["caller"]
    if gateway.num_watchers >= MAX_WATCHERS:
        message = f"{MAX_WATCHERS} streams of figures are open, which is all there are; GET /v1/narrows/status works"
        raise ApiError(429, message, code="too_many_watchers", headers={"Retry-After": "10"})
    gateway.num_watchers += 1

    def close() -> None:
        gateway.num_watchers -= 1

    return EventStream(_watch(gateway, caller.deadline), close)


async def _watch(gateway: Gateway, deadline: float | None) -> AsyncIterator[bytes]:
    bandwidth, shown = cache(known), None
    while not gateway.draining and (deadline is None or time.monotonic() < deadline):
        if (now := figures(gateway, bandwidth)) != shown:
            yield event(now)
            shown = now
        await asyncio.sleep(INTERVAL_SECONDS)


def figures(gateway: Gateway, bandwidth: Callable[[int], float | None]) -> dict[str, Any]:
    """All models; `bandwidth` gives the GB/s that a number of threads was measured to read, or None."""
    return {"models": [_figures(backend, bandwidth) for backend in gateway.backends]}


def _figures(backend: Backend, bandwidth: Callable[[int], float | None]) -> dict[str, Any]:
    limits, report, totals = backend.limits, backend.report, backend.totals
    drafts = totals.drafts
    return {
        "id": backend.name,
        "state": backend.state,
        "stack": limits and limits.stack,
        "lossless": limits and limits.lossless,
        "num_threads": limits and limits.num_threads,
        "bandwidth_gigabytes": bandwidth(limits.num_threads) if limits else None,  # 10^9 bytes a second
        "max_model_len": limits and limits.max_model_len,
        "max_num_seqs": limits and limits.max_num_seqs,
        "max_queued": backend.max_queued,
        "num_running": backend.num_running,
        "num_waiting": backend.num_waiting,
        "page_size": limits and limits.page_size,  # tokens
        "num_pages": limits and limits.num_pages,
        "num_used_pages": limits.num_pages - report.num_free_pages if limits and report else 0,
        "totals": {
            "steps": totals.num_steps,
            "read_tokens": totals.num_read,
            "output_tokens": totals.num_output,
            "cached_tokens": totals.num_cached,
            "weight_bytes": totals.weight_bytes,
            "kv_bytes": totals.kv_bytes,
            "draft_bytes": drafts.num_bytes,
            "step_seconds": totals.step_seconds,
            "forward_seconds": totals.forward_seconds,
            "draft_seconds": drafts.seconds,
            "chosen_tokens": drafts.num_tokens,
            "chosen_steps": drafts.num_steps,
            "drafted_tokens": drafts.num_drafted,
            "accepted_tokens": drafts.num_accepted,
        },
    }

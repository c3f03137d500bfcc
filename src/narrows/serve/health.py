"""Is it alive, is it ready, what is it doing: GET /livez, /readyz, /health, /metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from .gateway import Gateway

router = APIRouter()
PUBLIC = frozenset(("/livez", "/readyz", "/health"))


@router.get("/livez")
async def livez(request: Request) -> JSONResponse:
    """200 while every engine that has work goes on: its count of steps grows, or an idle one answers.

    A full queue, a loading model or one being restarted is no reason to kill the server; see /readyz.
    """
    gateway: Gateway = request.app.state.gateway
    limit = gateway.settings.stall_timeout
    stalled = [backend.name for backend in gateway.backends if backend.stalled(limit)]
    steps = {backend.name: backend.totals.num_steps for backend in gateway.backends}
    return _state("stalled" if stalled else "alive", not stalled, {"stalled": stalled, "steps": steps})


@router.get("/readyz")
@router.get("/health")
async def readyz(request: Request) -> JSONResponse:
    """200 when requests will be answered by every model."""
    gateway: Gateway = request.app.state.gateway
    states = {backend.name: backend.state for backend in gateway.backends}
    ready = not gateway.draining and all(state == "ready" for state in states.values())
    return _state("ready" if ready else "draining" if gateway.draining else "not ready", ready, {"models": states})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    return Response(request.app.state.gateway.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _state(status: str, good: bool, more: dict[str, Any]) -> JSONResponse:
    return JSONResponse({"status": status, **more}, 200 if good else 503)

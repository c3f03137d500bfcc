"""Is it alive, is it ready, what is it doing: GET /livez, /readyz, /health, /metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from .gateway import Gateway
from .replies import KEY, Liveness, Readiness, states

router = APIRouter()
PUBLIC = frozenset(("/livez", "/readyz", "/health"))  # need no API key
_READY = states(Readiness, "Requests will be answered.", "Some model is not ready, or the server is going.")
_PROMETHEUS = {"text/plain": {"schema": {"type": "string"}}}
REPLACE_SECONDS = 10.0  # in which a stalled process is gone


@router.get("/livez", responses=states(Liveness, "It goes on.", "A model has stopped for good."))
async def livez(request: Request) -> JSONResponse:
    """200 while every engine that has work goes on: its count of steps grows, or an idle one answers.

    A process that stalls is replaced; only when that fails does the server need help. A full queue, a loading model or
    one being restarted is no reason to kill it; see /readyz.
    """
    gateway: Gateway = request.app.state.gateway
    limit = gateway.settings.stall_timeout + REPLACE_SECONDS
    stalled = [backend.name for backend in gateway.backends if backend.stalled(limit)]
    steps = {backend.name: backend.totals.num_steps for backend in gateway.backends}
    return _state("stalled" if stalled else "alive", not stalled, {"stalled": stalled, "steps": steps})


@router.get("/readyz", responses=_READY)
@router.get("/health", responses=_READY)
async def readyz(request: Request) -> JSONResponse:
    """200 when requests will be answered by every model."""
    gateway: Gateway = request.app.state.gateway
    states = {backend.name: backend.state for backend in gateway.backends}
    ready = not gateway.draining and all(state == "ready" for state in states.values())
    return _state("ready" if ready else "draining" if gateway.draining else "not ready", ready, {"models": states})


@router.get("/metrics", dependencies=KEY, response_class=Response, responses={200: {"content": _PROMETHEUS}})
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    return Response(request.app.state.gateway.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _state(status: str, good: bool, more: dict[str, Any]) -> JSONResponse:
    return JSONResponse({"status": status, **more}, 200 if good else 503)

"""The application: routes, and what a client is told of anything that goes wrong."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from ..sampling import ParamError
from . import chat, completions, embeddings, health, responses, status, texts, web
from .errors import ApiError, from_status
from .events import ClientGone
from .gateway import Gateway
from .guard import Guard
from .replies import ERRORS, KEY


def create_app(gateway: Gateway) -> ASGIApp:
    """The ASGI application of a gateway, guard included."""
    app = FastAPI(
        title="Narrows",
        version=version("narrows"),
        description="The models of this server, as OpenAI's clients expect them.",
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    app.state.gateway = gateway
    for part in (chat, completions, responses, embeddings, texts, status):
        app.include_router(part.router, dependencies=KEY)
    for part in (health, web):
        app.include_router(part.router)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    guarded: ASGIApp = Guard(app, gateway.settings, gateway.tracing)
    if gateway.settings.cors_origins:
        origins = gateway.settings.cors_origins
        guarded = CORSMiddleware(guarded, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    return guarded


async def _api(request: Request, error: Any) -> Response:
    return error.response()


async def _param(request: Request, error: Any) -> Response:
    return ApiError(400, error.message, param=error.field).response()


async def _invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    where = str(first["loc"][1]) if len(first["loc"]) > 1 else ""  # what follows are branches of its type
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}").response()
    if first["type"] == "missing":
        message = f"{where} is missing" if where else "the body is missing: send a JSON object as application/json"
    else:
        message = f"{where}: {first['msg']}" if where else f"the body must be a JSON object: {first['msg']}"
    return ApiError(400, message, param=where or None).response()


async def _http(request: Request, error: Any) -> Response:
    return from_status(error.status_code, error.detail).response()


async def _gone(request: Request, error: Any) -> Response:
    return Response(status_code=499)  # nobody reads it; the log does


async def _failed(request: Request, error: Any) -> Response:
    return ApiError(500, "the server made a mistake; its log says more", code="internal_error").response()


_HANDLERS: dict[Any, Any] = {
    ApiError: _api,
    ParamError: _param,
    RequestValidationError: _invalid,
    HTTPException: _http,
    ClientGone: _gone,
    Exception: _failed,
}

"""What every request passes before the application sees it: who asks, from where, how much; and the access log."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import re
import time
import uuid
from collections.abc import Mapping
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .gateway import Caller
from .health import PUBLIC
from .rates import RateLimit
from .settings import Settings
from .tracing import Exchange, Tracing
from .web import PATHS

log = logging.getLogger("narrows.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_OPEN = PUBLIC | PATHS  # need no API key
_GONE = 499  # what the log says of a client that left


class Guard:
    """Checks Host, Origin, API key and size, reads the body within a time limit, and logs the outcome.

    The application finds a `Caller` in the scope and a body that is complete.
    """

    def __init__(self, app: ASGIApp, settings: Settings, tracing: Tracing | None = None) -> None:
        self._app, self._settings, self._tracing = app, settings, tracing
        self._hosts = settings.hosts()
        self._rates = RateLimit(settings.requests_per_minute)
        self._keys = [sha256(key.encode()).digest() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), _GONE
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        caller = Caller(request_id)

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            self._check_origin(headers)
            caller = Caller(request_id, self._check_key(scope["path"], headers), self._deadline(headers, began))
            if scope["path"] not in _OPEN:
                self._rates.take(caller.key)
            body = await self._read(headers, receive)
            if body is not None:
                await self._app({**scope, "caller": caller}, _replay(body, receive), tell)
        except ApiError as error:
            await error.response()(scope, receive, tell)
        finally:
            ended = time.monotonic()
            if self._tracing is not None and scope["path"] not in _OPEN:
                self._tracing.record(Exchange(scope["method"], scope["path"], headers, status, began, ended), caller)
            more = "".join(f" {name}={value}" for name, value in caller.log.items())
            path = scope["path"].encode("unicode_escape").decode()[:200]
            log.info('%s "%s %s" %d %.3fs%s', request_id, scope["method"], path, status, ended - began, more)

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuses names that are not the server's (a rebound DNS name), and web pages of elsewhere."""
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            message = f"the Host {host[:100]!r} is not served here; --allowed-host adds it"
            raise ApiError(403, message, code="host_not_allowed")
        origin, allowed = headers.get("origin"), self._settings.cors_origins
        if origin is not None and origin not in allowed and "*" not in allowed and urlsplit(origin).netloc != host:
            message = f"web pages of {origin[:100]!r} may not ask; --cors-origin lets them"
            raise ApiError(403, message, code="origin_not_allowed")

    def _check_key(self, path: str, headers: Mapping[str, str]) -> str:
        """A digest of the caller's key, "" where none is needed. Takes as long for any wrong key."""
        if not self._keys or path in _OPEN:
            return ""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = sha256(key.strip().encode()).digest()
        if not sum(hmac.compare_digest(digest, known) for known in self._keys) or scheme.lower() != "bearer":
            raise ApiError(
                401,
                "the API key is missing or wrong; send the header Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return digest.hex()

    def _deadline(self, headers: Mapping[str, str], now: float) -> float:
        text = headers.get("x-request-timeout")
        seconds = self._settings.request_timeout
        if text is not None:
            try:
                asked = float(text)
            except ValueError:
                asked = math.nan
            if not asked > 0:
                raise ApiError(400, "X-Request-Timeout must be a number of seconds above 0", param="X-Request-Timeout")
            seconds = min(seconds, asked)
        return now + seconds

    async def _read(self, headers: Mapping[str, str], receive: Receive) -> bytes | None:
        """The body; None when the client left before it was complete."""
        limit, timeout = self._settings.max_body_bytes, self._settings.body_timeout
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        chunks, size, more = [], 0, True
        try:
            async with asyncio.timeout(timeout):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > limit:
                        raise _too_large(limit)
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {timeout:g} s", code="body_timeout") from None
        return b"".join(chunks)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than {limit} bytes; --max-body-bytes sets the limit", code="body_too_large"
    )


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, then what comes after it."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again

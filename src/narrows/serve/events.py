"""Server-sent events, and noticing that nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

KEEP_ALIVE_SECONDS = 15.0
DONE = b"data: [DONE]\n\n"
# Ends of lines to Unicode, though not to server-sent events: some clients cut there.
_SEPARATORS = [(char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\x85\u2028\u2029"]
T = TypeVar("T")


def event(content: dict[str, Any], name: str | None = None) -> bytes:
    """One event, as it goes over the line."""
    head = f"event: {name}\n".encode() if name else b""
    data = msgspec.json.encode(content)
    for char, escaped in _SEPARATORS:
        data = data.replace(char, escaped)
    return head + b"data: " + data + b"\n\n"


class EventStream(Response):
    """Server-sent events, with a comment now and then while there is nothing to say."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._events, self._close = events, close
        self._silent = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send(send))
        except ClientGone:
            pass
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        ticker = asyncio.ensure_future(self._keep_alive(send))
        try:
            async for chunk in self._events:
                self._silent = False
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            ticker.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        while True:
            self._silent = True
            await asyncio.sleep(KEEP_ALIVE_SECONDS)
            if self._silent:
                await send({"type": "http.response.body", "body": b": still working\n\n", "more_body": True})


class ClientGone(Exception):
    """Nobody waits for the response any more."""


async def until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Waits for work, the request's body having been read; raises ClientGone, work being cancelled, should it leave."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)

"""One connection of a client: heads that do not come and readers that stop may not hold it for ever."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ApiError


def connection(head_timeout: float, send_timeout: float) -> type[H11Protocol]:
    """The protocol that speaks HTTP/1.1 within these limits, in seconds."""
    return type("Connection", (Connection,), {"head_timeout": head_timeout, "send_timeout": send_timeout})


class Connection(H11Protocol):
    """HTTP/1.1 with an end to waiting.

    The head of a request has `head_timeout` seconds from the connection, or from its first byte on an old one. A client
    that takes nothing of what waits for it for `send_timeout` seconds has left. What waits meanwhile is bounded: by the
    buffer of the transport, which makes the application wait, and by `narrows.serve.call.MAX_UNREAD` behind that.
    """

    head_timeout: float
    send_timeout: float
    _head: asyncio.TimerHandle | None = None
    _send: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head, self._send = _stop(self._head), _stop(self._send)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_send(-1)

    def resume_writing(self) -> None:
        self._send = _stop(self._send)
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.send_timeout, self.transport.abort)  # closing waits until all is read

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP is told so as everything else is."""
        response = ApiError(400, msg).response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        body = h11.Data(bytes(response.body))
        with suppress(h11.LocalProtocolError):  # another response is on its way, or this one may have no body
            for event in (h11.Response(status_code=400, headers=headers), body, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_head(self) -> None:
        waiting = self.conn.their_state is h11.IDLE
        if waiting and self._head is None:
            self._head = self.loop.call_later(self.head_timeout, self.transport.abort)
        elif not waiting:
            self._head = _stop(self._head)

    def _watch_send(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left == before:
            self.transport.abort()
        else:
            self._send = self.loop.call_later(self.send_timeout, self._watch_send, left)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()

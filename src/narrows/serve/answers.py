"""From what the engine brings to a response, whole or as server-sent events, the same way for every kind of answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ..types import TokenLogprobs
from . import wire
from .call import Call
from .errors import ApiError
from .gateway import Caller

KEEP_ALIVE_SECONDS = 15.0
DONE = b"data: [DONE]\n\n"
T = TypeVar("T")


class Answer:
    """One answer as it grows."""

    def __init__(self, prompt: list[int], index: int) -> None:
        self.prompt, self.index = prompt, index  # among all answers of the request
        self.text = ""
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.num_cached = 0
        self.ledger: dict[str, Any] | None = None
        self.unsent: list[TokenLogprobs] = []  # of tokens not shown yet
        self.prompt_logprobs: list[TokenLogprobs | None] = []

    def push(self, delta: wire.Delta) -> None:
        self.text += delta.text
        self.num_tokens += len(delta.token_ids)
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        self.num_cached, self.ledger = delta.num_cached, delta.ledger
        self.unsent += delta.logprobs or []
        self.prompt_logprobs += delta.prompt_logprobs or []

    def take_logprobs(self) -> list[TokenLogprobs]:
        """Log-probabilities of the tokens since the last time."""
        taken, self.unsent = self.unsent, []
        return taken


class Format(Protocol):
    """How an answer is written."""

    head: dict[str, Any]  # what every response or chunk begins with
    chunk_head: dict[str, Any]

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The choice of a finished answer."""
        ...

    def first(self, answer: Answer) -> list[dict[str, Any]]:
        """Choices of chunks that open an answer's stream."""
        ...

    def piece(self, answer: Answer, text: str) -> list[dict[str, Any]]:
        """Choices of chunks for new text, which may be empty only when the answer is finished."""
        ...


async def respond(
    request: Request,
    call: Call,
    form: Format,
    *,
    stream: bool,
    include_usage: bool,
    change: Callable[[wire.Delta], wire.Delta] = lambda delta: delta,
) -> Response:
    """Answers with what comes of a call; `change` alters each delta first. Cancels the call when the client is gone."""
    caller: Caller = request.scope["caller"]
    n = call.jobs[0].submit.params.n
    answers = [Answer(job.submit.prompt, job.position * n + i) for job in call.jobs for i in range(n)]

    async def events() -> AsyncIterator[tuple[Answer, str]]:
        """Answers and their new text."""
        async for position, delta in call:
            delta, answer = change(delta), answers[position * n + delta.index]
            answer.push(delta)
            caller.log["completion_tokens"] = caller.log.get("completion_tokens", 0) + len(delta.token_ids)
            yield answer, delta.text

    def usage() -> dict[str, Any]:
        num_prompt = sum(len(answer.prompt) for answer in answers[::n])
        num_output = sum(answer.num_tokens for answer in answers)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": sum(answer.num_cached for answer in answers[::n])},
        }

    async def collect() -> None:
        async for _ in events():
            pass

    if stream:
        return EventStream(_chunks(events(), form, usage if include_usage else None), call.close)
    try:
        await until_disconnect(request.receive, collect())
    finally:
        call.close()
    content = form.head | {
        "choices": [form.whole(answer) for answer in answers],
        "usage": usage(),
        "ledger": answers[0].ledger,
    }
    return Response(msgspec.json.encode(content), media_type="application/json")


async def _chunks(
    events: AsyncIterator[tuple[Answer, str]], form: Format, usage: Callable[[], dict[str, Any]] | None
) -> AsyncIterator[bytes]:
    none = {"usage": None} if usage else {}
    opened: set[int] = set()
    ledger = None
    try:
        async for answer, text in events:
            choices = []
            if answer.index not in opened:
                opened.add(answer.index)
                choices += form.first(answer)
            if text or answer.finish_reason:
                choices += form.piece(answer, text)
            for choice in choices:
                yield _event(form.chunk_head | {"choices": [choice]} | none)
            ledger = answer.ledger if answer.index == 0 and answer.ledger else ledger
    except ApiError as error:  # the status went out long ago
        yield _event(error.body)
        return
    if usage:
        yield _event(form.chunk_head | {"choices": [], "usage": usage(), "ledger": ledger})
    yield DONE


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


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

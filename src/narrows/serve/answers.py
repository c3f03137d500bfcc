"""From what the engine brings to a response, whole or as server-sent events, the same way for every kind of answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..types import TokenLogprobs
from . import wire
from .call import Call
from .events import EventStream, until_disconnect
from .gateway import Caller


class Answer:
    """One answer as it grows."""

    def __init__(self, prompt: list[int], index: int) -> None:
        self.prompt, self.index = prompt, index  # among all answers of the request
        self.text = ""
        self.num_tokens = 0
        self.drafted = False  # whether the latest news were guessed and kept
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.num_cached = 0
        self.ledger: dict[str, Any] | None = None
        self.unsent: list[TokenLogprobs] = []  # of tokens not shown yet
        self.prompt_logprobs: list[TokenLogprobs | None] = []

    def push(self, delta: wire.Delta) -> None:
        self.text += delta.text
        self.num_tokens += len(delta.token_ids)
        self.drafted = delta.num_drafted == len(delta.token_ids) > 0
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        self.num_cached, self.ledger = delta.num_cached, delta.ledger
        self.unsent += delta.logprobs or []
        self.prompt_logprobs += delta.prompt_logprobs or []

    def take_logprobs(self) -> list[TokenLogprobs]:
        """Log-probabilities of the tokens since the last time."""
        taken, self.unsent = self.unsent, []
        return taken


class Run:
    """The answers of one request as they grow.

    `change` alters each delta before anybody sees it; with `apart`, guessed tokens and others come one after the other.
    """

    def __init__(
        self, call: Call, change: Callable[[wire.Delta], wire.Delta] = lambda delta: delta, *, apart: bool = False
    ) -> None:
        self.call, self._change, self._apart = call, change, apart
        self._n = n = call.jobs[0].submit.params.n
        self.answers = [Answer(job.submit.prompt, job.position * n + i) for job in call.jobs for i in range(n)]

    async def news(self) -> AsyncIterator[tuple[Answer, str]]:
        """Answers that got on, and their new text. Raises ApiError when one will not come."""
        async for position, delta in self.call:
            delta, answer = self._change(delta), self.answers[position * self._n + delta.index]
            for part in _apart(delta) if self._apart else (delta,):
                answer.push(part)
                yield answer, part.text

    @property
    def num_prompt(self) -> int:
        return sum(len(answer.prompt) for answer in self.answers[:: self._n])

    @property
    def num_cached(self) -> int:
        """Of the prompts' tokens."""
        return sum(answer.num_cached for answer in self.answers[:: self._n])

    @property
    def num_output(self) -> int:
        return sum(answer.num_tokens for answer in self.answers)

    @property
    def ledger(self) -> dict[str, Any] | None:
        """What the first answer cost, when it is finished."""
        return self.answers[0].ledger


def _apart(delta: wire.Delta) -> list[wire.Delta]:
    """A delta as its guessed tokens, if any, and its others, if any; what ends the answer comes with the last."""
    num, length = delta.num_drafted, delta.num_drafted_chars
    if not 0 < num < len(delta.token_ids):
        return [delta]
    logprobs = delta.logprobs
    first = msgspec.structs.replace(
        delta,
        text=delta.text[:length],
        token_ids=delta.token_ids[:num],
        logprobs=logprobs and logprobs[:num],
        finish_reason=None,
        stop_reason=None,
        ledger=None,
    )
    rest = msgspec.structs.replace(
        delta,
        text=delta.text[length:],
        token_ids=delta.token_ids[num:],
        logprobs=logprobs and logprobs[num:],
        prompt_logprobs=None,
        num_drafted=0,
        num_drafted_chars=0,
    )
    return [first, rest]


class Form(Protocol):
    """How answers are written."""

    def body(self, run: Run) -> dict[str, Any]:
        """All of them, being finished."""
        ...

    def stream(self, run: Run) -> AsyncIterator[bytes]:
        """Their events as they grow, errors included."""
        ...


async def respond(request: Request, run: Run, form: Form, *, stream: bool) -> Response:
    """Answers with what a run brings, and cancels it when the client is gone."""
    caller: Caller = request.scope["caller"]

    def close() -> None:
        run.call.close()
        caller.log["completion_tokens"] = run.num_output

    async def collect() -> None:
        async for _ in run.news():
            pass

    if stream:
        return EventStream(form.stream(run), close)
    try:
        await until_disconnect(request.receive, collect())
    finally:
        close()
    return Response(msgspec.json.encode(form.body(run)), media_type="application/json")

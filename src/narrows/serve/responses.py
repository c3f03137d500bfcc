"""POST /v1/responses: text in, text and calls of functions out, and nothing kept."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter, Request, Response

from ..sampling import SamplingParams
from ..text.tool_calls import Content
from ..text.tools import ToolUse
from . import features, response_input
from .answers import Answer, Run, respond
from .bodies import ResponsesRequest, sampling
from .errors import ApiError
from .events import event
from .gateway import Caller, Gateway, Served, in_thread
from .replies import ResponseReply, streamed
from .response_items import Items, Said

router = APIRouter()


@router.post("/v1/responses", responses=streamed(ResponseReply, "The answer."))
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answers an input, which holds the whole conversation."""
    features.check(body)
    gateway: Gateway = request.app.state.gateway
    caller: Caller = request.scope["caller"]
    served = gateway.model(body.model)
    use = response_input.tool_use(body, served.chat_template.source)
    asked = response_input.form(body.text)
    if use.structured_outputs and asked:
        raise ApiError(400, "tool_choice asks for a call, which text.format does not allow", param="tool_choice")
    given = {"temperature": body.temperature, "top_p": body.top_p}
    given = {name: value for name, value in given.items() if value is not None} | {"max_tokens": body.max_output_tokens}
    given["structured_outputs"] = use.structured_outputs or asked
    params = sampling(given, max_tokens="max_output_tokens")
    await served.forms.check(params, request, "tools" if use.structured_outputs else "text.format")
    try:
        messages = await in_thread("input", use.messages, response_input.messages(body))
        prompt = await served.encode_chat(messages, True, use.variables)
    except ApiError as error:
        raise ApiError(400, error.message, param="input") from None
    form = ResponseForm(served, caller, body, params, use)
    call = served.submit([prompt], params, caller, "input", priority=body.priority)
    return await respond(request, Run(call), form, stream=bool(body.stream))


class ResponseForm:
    """A `narrows.serve.answers.Form` of one response object."""

    def __init__(
        self, served: Served, caller: Caller, body: ResponsesRequest, params: SamplingParams, use: ToolUse
    ) -> None:
        self._items = Items()
        self._reader = use.reader()
        self._head: dict[str, Any] = {
            "id": f"resp_{caller.request_id}",
            "object": "response",
            "created_at": int(time.time()),
            "model": served.name,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "metadata": body.metadata or {},
            "user": body.user,
            "previous_response_id": None,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "text": response_input.shown_form(body.text),
            "truncation": "disabled",
            "error": None,
        }

    def body(self, run: Run) -> dict[str, Any]:
        answer = run.answers[0]
        if not self._items.items:  # nothing was streamed
            for _ in self._said(answer, answer.text):
                pass
        usage = {
            "input_tokens": run.num_prompt,
            "input_tokens_details": {"cached_tokens": run.num_cached, "cache_write_tokens": 0},
            "output_tokens": run.num_output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": run.num_prompt + run.num_output,
        }
        return {
            **self._head,
            "status": self._status(answer),
            "incomplete_details": {"reason": "max_output_tokens"} if _cut(answer) else None,
            "output": self._items.items,
            "usage": usage,
            "ledger": run.ledger,
        }

    async def stream(self, run: Run) -> AsyncIterator[bytes]:
        number = 0

        def say(kind: str, content: dict[str, Any]) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number - 1, **content}, kind)

        begun = {**self._head, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        yield say("response.created", {"response": begun})
        yield say("response.in_progress", {"response": begun})
        try:
            async for answer, text in run.news():
                for said in self._said(answer, text):
                    yield say(*said)
        except ApiError as error:
            yield say("error", {"code": error.code, "message": error.message, "param": error.param})
            return
        yield say(f"response.{self._status(run.answers[0])}", {"response": self.body(run)})

    def _said(self, answer: Answer, text: str) -> Iterator[Said]:
        """What new text of the answer, and its end, change."""
        ended = answer.finish_reason is not None
        if self._reader is None:
            found = [Content(text)] if text else []
        else:
            found = self._reader.push(text) + (self._reader.finish() if ended else [])
        for each in found:
            yield from self._items.push(each)
        if ended:
            yield from self._items.finish(_cut(answer))

    def _status(self, answer: Answer) -> str:
        return "incomplete" if _cut(answer) else "completed"


def _cut(answer: Answer) -> bool:
    return answer.finish_reason == "length"

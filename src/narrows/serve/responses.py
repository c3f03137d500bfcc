"""POST /v1/responses: text in, text out, and nothing kept."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response

from ..sampling import SamplingParams
from . import features
from .answers import Run, respond
from .bodies import ResponsesRequest, json_form, sampling
from .errors import ApiError
from .events import event
from .gateway import Caller, Gateway, Served

router = APIRouter()
_TEXTS = ("input_text", "output_text", "text")


@router.post("/v1/responses")
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answers an input, which holds the whole conversation."""
    features.check(body, features.RESPONSES)
    gateway: Gateway = request.app.state.gateway
    caller: Caller = request.scope["caller"]
    served = gateway.model(body.model)
    given = {"temperature": body.temperature, "top_p": body.top_p}
    given = {name: value for name, value in given.items() if value is not None} | {"max_tokens": body.max_output_tokens}
    params = sampling(given | {"structured_outputs": _form(body.text)}, max_tokens="max_output_tokens")
    await served.check_form(params, "text.format")
    try:
        prompt = await served.encode_chat(_messages(body), True, {})
    except ApiError as error:
        raise ApiError(400, error.message, param="input") from None
    form = ResponseForm(served, caller, body, params)
    call = served.submit([prompt], params, caller, "input", priority=body.priority)
    return await respond(request, Run(call), form, stream=bool(body.stream))


def _form(text: Any) -> dict[str, Any] | None:
    """`text.format`, which has the schema beside its type, as `structured_outputs`. Raises ApiError."""
    if text is None or text == {}:
        return None
    if not isinstance(text, dict) or not text.keys() <= {"format", "verbosity"}:
        raise ApiError(400, 'text must be {"format": {...}}', param="text")
    wanted = text.get("format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        wanted = {"type": "json_schema", "json_schema": wanted}
    return json_form(wanted, "text.format")


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    """The input as the messages of a chat; items are checked as those are. Raises ApiError."""
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for i, item in enumerate(body.input):
        if item.get("type", "message") != "message":
            kind = str(item["type"])[:50]
            raise ApiError(400, f"input[{i}] is a {kind!r}; only messages are supported", param="input")
        content, role = item.get("content"), item.get("role")
        if isinstance(content, list):
            content = [
                {**part, "type": "text"} if isinstance(part, dict) and part.get("type") in _TEXTS else part
                for part in content
            ]
        messages.append({"role": "system" if role == "developer" else role, "content": content})
    return messages


class ResponseForm:
    """A `narrows.serve.answers.Form` of one response object."""

    def __init__(self, served: Served, caller: Caller, body: ResponsesRequest, params: SamplingParams) -> None:
        self._item_id = f"msg_{caller.request_id}"
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
            "store": False,
            "previous_response_id": None,
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "error": None,
        }

    def body(self, run: Run) -> dict[str, Any]:
        cut = run.answers[0].finish_reason == "length"
        usage = {
            "input_tokens": run.num_prompt,
            "input_tokens_details": {"cached_tokens": run.num_cached, "cache_write_tokens": 0},
            "output_tokens": run.num_output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": run.num_prompt + run.num_output,
        }
        return {
            **self._head,
            "status": self._status(run),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item(run)],
            "usage": usage,
            "ledger": run.ledger,
        }

    async def stream(self, run: Run) -> AsyncIterator[bytes]:
        number = 0

        def say(kind: str, **content: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number - 1, **content}, kind)

        begun = {**self._head, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        item = {"item_id": self._item_id, "output_index": 0}
        part = {**item, "content_index": 0}
        empty = {"id": self._item_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        yield say("response.created", response=begun)
        yield say("response.in_progress", response=begun)
        yield say("response.output_item.added", output_index=0, item=empty)
        yield say("response.content_part.added", **part, part=_text(""))
        try:
            async for _, text in run.news():
                if text:
                    yield say("response.output_text.delta", **part, delta=text, logprobs=[])
        except ApiError as error:
            yield say("error", code=error.code, message=error.message, param=error.param)
            return
        whole = run.answers[0].text
        yield say("response.output_text.done", **part, text=whole, logprobs=[])
        yield say("response.content_part.done", **part, part=_text(whole))
        yield say("response.output_item.done", output_index=0, item=self._item(run))
        yield say(f"response.{self._status(run)}", response=self.body(run))

    def _status(self, run: Run) -> str:
        return "incomplete" if run.answers[0].finish_reason == "length" else "completed"

    def _item(self, run: Run) -> dict[str, Any]:
        item = {"id": self._item_id, "type": "message", "status": self._status(run), "role": "assistant"}
        return {**item, "content": [_text(run.answers[0].text)]}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

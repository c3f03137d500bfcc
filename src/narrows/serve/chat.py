"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from ..sampling import ParamError
from ..text import Tokenizer
from ..text.tool_calls import ToolCallReader
from ..text.tools import ToolUse, delta
from ..types import TokenLogprobs
from . import features
from .answers import Answer, Run, respond
from .bodies import ChatRequest, ChoiceStreamOptions
from .choices import ChoiceForm
from .errors import ApiError
from .gateway import Caller, Gateway, Served, in_thread
from .replies import ChatCompletion, streamed

router = APIRouter()
LEAST_LOGPROB = -9999.0  # JSON has no infinity


@router.post("/v1/chat/completions", responses=streamed(ChatCompletion, "The answers."))
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answers a conversation."""
    features.check(body)
    gateway: Gateway = request.app.state.gateway
    caller: Caller = request.scope["caller"]
    served = gateway.model(body.model)
    try:
        use = ToolUse.of(body.tools, body.tool_choice, body.parallel_tool_calls, served.chat_template.source)
    except ParamError as error:
        raise ApiError(400, error.message, param=error.field) from None
    name, asked = body.form()
    if use.structured_outputs and asked:
        raise ApiError(400, f"tool_choice asks for a call, which {name} does not allow", param="tool_choice")
    params = body.params(use.structured_outputs if use.structured_outputs else asked)
    served.check_count(params.n)
    await served.forms.check(params, request, "tools" if use.structured_outputs else name)
    form = ChatForm(served, caller, body.streaming, bool(body.logprobs), use)
    variables = use.variables | (body.chat_template_kwargs or {})
    messages = await in_thread("messages", use.messages, body.messages)
    prompt = await served.encode_chat(messages, body.add_generation_prompt, variables)
    call = served.submit([prompt], params, caller, "messages", body.cache_salt, body.priority)
    run = Run(call, apart=bool(body.streaming.include_drafted))
    return await respond(request, run, form, stream=bool(body.stream))


class ChatForm(ChoiceForm):
    """Choices with messages, or with deltas of them."""

    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self, served: Served, caller: Caller, streaming: ChoiceStreamOptions, logprobs: bool, use: ToolUse
    ) -> None:
        super().__init__(served, caller, streaming)
        self._logprobs, self._use = logprobs, use
        self._readers: dict[int, ToolCallReader | None] = {}  # by answer

    def whole(self, answer: Answer) -> dict[str, Any]:
        message = {"refusal": None, **self._use.message(answer.text)}
        reason = _reason(answer, bool(message.get("tool_calls")))
        return self._choice(answer) | {"message": message, "finish_reason": reason}

    def first(self, answer: Answer) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [{"index": answer.index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def piece(self, answer: Answer, text: str) -> list[dict[str, Any]]:
        if answer.index not in self._readers:
            self._readers[answer.index] = self._use.reader()
        reader = self._readers[answer.index]
        if reader is None:
            deltas = [{"content": text}] if text else []
        else:
            deltas = [delta(event) for event in reader.push(text) + (reader.finish() if answer.finish_reason else [])]
        choices = [self._choice(answer) | {"delta": d, "finish_reason": None} for d in deltas]
        if answer.finish_reason:  # by itself, as OpenAI does it
            reason = _reason(answer, reader is not None and reader.num_calls > 0)
            choices.append(self._choice(answer) | {"delta": {}, "finish_reason": reason})
        return choices

    def _choice(self, answer: Answer) -> dict[str, Any]:
        taken = answer.take_logprobs()
        content = [_entry(self._tokenizer, t) for t in taken]
        shown = {"content": content, "refusal": None} if self._logprobs and (content or not answer.num_tokens) else None
        return {
            "index": answer.index,
            "logprobs": shown,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }


def _reason(answer: Answer, called: bool) -> str | None:
    return "tool_calls" if called and answer.finish_reason == "stop" else answer.finish_reason


def _entry(tokenizer: Tokenizer, logprobs: TokenLogprobs) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {"token": data.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(data)}

    top = [entry(token, logprob) for token, logprob in logprobs.top]
    return entry(logprobs.token, logprobs.logprob) | {"top_logprobs": top}


def finite(logprob: float) -> float:
    """A log-probability that JSON can write."""
    return max(logprob, LEAST_LOGPROB)

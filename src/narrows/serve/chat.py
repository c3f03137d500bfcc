"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from ..text import Tokenizer
from ..types import TokenLogprobs
from . import features
from .answers import Answer, Run, respond
from .bodies import ChatRequest
from .choices import ChoiceForm
from .gateway import Caller, Gateway, Served

router = APIRouter()
LEAST_LOGPROB = -9999.0  # JSON has no infinity


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answers a conversation."""
    features.check(body)
    gateway: Gateway = request.app.state.gateway
    caller: Caller = request.scope["caller"]
    served = gateway.model(body.model)
    params = body.params()
    served.check_count(params.n)
    form = ChatForm(served, caller, body.include_usage, bool(body.logprobs))
    prompt = await served.encode_chat(body.messages, body.add_generation_prompt, body.chat_template_kwargs or {})
    call = served.submit([prompt], params, caller, "messages", body.cache_salt or "")
    return await respond(request, Run(call), form, stream=bool(body.stream))


class ChatForm(ChoiceForm):
    """Choices with messages, or with deltas of them."""

    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, served: Served, caller: Caller, include_usage: bool, logprobs: bool) -> None:
        super().__init__(served, caller, include_usage)
        self._logprobs = logprobs

    def whole(self, answer: Answer) -> dict[str, Any]:
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        return self._choice(answer) | {"message": message}

    def first(self, answer: Answer) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [{"index": answer.index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def piece(self, answer: Answer, text: str) -> list[dict[str, Any]]:
        choices = []
        if text:
            choices.append(self._choice(answer) | {"delta": {"content": text}, "finish_reason": None})
        if answer.finish_reason:  # by itself, as OpenAI does it
            choices.append(self._choice(answer) | {"delta": {}})
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


def _entry(tokenizer: Tokenizer, logprobs: TokenLogprobs) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {"token": data.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(data)}

    top = [entry(token, logprob) for token, logprob in logprobs.top]
    return entry(logprobs.token, logprobs.logprob) | {"top_logprobs": top}


def finite(logprob: float) -> float:
    """A log-probability that JSON can write."""
    return max(logprob, LEAST_LOGPROB)

"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from ..text import Detokenizer, Tokenizer
from ..types import TokenLogprobs
from . import features, wire
from .answers import Answer, Run, respond
from .bodies import ChoiceStreamOptions, CompletionRequest, prompts, sampling
from .chat import finite
from .choices import ChoiceForm
from .errors import ApiError
from .gateway import Caller, Gateway, Served
from .replies import Completion, streamed

router = APIRouter()


@router.post("/v1/completions", responses=streamed(Completion, "The continuations."))
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continues one prompt or several, each a text or a list of token ids."""
    features.check(body)
    gateway: Gateway = request.app.state.gateway
    caller: Caller = request.scope["caller"]
    served = gateway.model(body.model)
    texts = prompts(body.prompt)
    no_tokens = type(body.max_tokens) is int and body.max_tokens == 0  # as evaluation harnesses ask, with echo
    echo = bool(body.echo)
    given = body.given() | ({"max_tokens": 1} if no_tokens else {})
    name, asked = body.form()
    params = sampling(given | {"structured_outputs": asked, "prompt_logprobs": given.get("logprobs") if echo else None})
    if body.best_of is not None and body.best_of != params.n:
        raise ApiError(400, f"best_of is {body.best_of}; it must equal n, which is {params.n}", param="best_of")
    if body.suffix:
        raise ApiError(400, "suffix is not supported: put what surrounds the gap into the prompt", param="suffix")
    served.check_count(params.n * len(texts))
    await served.forms.check(params, request, name)
    form = CompletionForm(
        served, caller, body.streaming, texts if echo else None, params.n, params.logprobs is not None
    )
    ids = [list(p) if not isinstance(p, str) else await served.encode(p, body.add_special_tokens) for p in texts]
    call = served.submit(ids, params, caller, "prompt", body.cache_salt, body.priority)
    run = Run(call, _without_tokens) if no_tokens else Run(call, apart=bool(body.streaming.include_drafted))
    return await respond(request, run, form, stream=bool(body.stream))


def _without_tokens(delta: wire.Delta) -> wire.Delta:
    logprobs = None if delta.logprobs is None else []
    return msgspec.structs.replace(
        delta, text="", token_ids=[], logprobs=logprobs, finish_reason="length", stop_reason=None
    )


class CompletionForm(ChoiceForm):
    """Choices with texts; with `echo`, the prompts stand before them."""

    prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        served: Served,
        caller: Caller,
        streaming: ChoiceStreamOptions,
        echo: Sequence[str | list[int]] | None,
        n: int,
        logprobs: bool,
    ) -> None:
        super().__init__(served, caller, streaming)
        self._echo, self._n, self._logprobs = echo, n, logprobs
        self._offsets: dict[int, _Offsets] = {}  # by answer

    def whole(self, answer: Answer) -> dict[str, Any]:
        prompt, logprobs = self._prompt(answer)
        return self._choice(answer, prompt + answer.text, logprobs)

    def first(self, answer: Answer) -> list[dict[str, Any]]:
        text, logprobs = self._prompt(answer)
        return [{**self._choice(answer, text, logprobs, take=False), "finish_reason": None}] if text else []

    def piece(self, answer: Answer, text: str) -> list[dict[str, Any]]:
        return [self._choice(answer, text, [])]

    def _prompt(self, answer: Answer) -> tuple[str, list[tuple[int, TokenLogprobs | None]]]:
        """What is echoed: the text of the prompt, and its tokens with their log-probabilities."""
        if self._echo is None:
            return "", []
        given, ids, tokenizer = self._echo[answer.index // self._n], answer.prompt, self._tokenizer
        text = given if isinstance(given, str) else tokenizer.decode(ids)
        if not answer.prompt_logprobs:
            return text, []
        added = (
            isinstance(given, str) and ids[0] == tokenizer.bos_id and not given.startswith(tokenizer.token_text(ids[0]))
        )
        self._offsets[answer.index] = _Offsets(tokenizer, num_silent=int(added))
        return text, list(zip(ids, answer.prompt_logprobs, strict=True))

    def _choice(
        self, answer: Answer, text: str, tokens: list[tuple[int, TokenLogprobs | None]], take: bool = True
    ) -> dict[str, Any]:
        taken: list[tuple[int, TokenLogprobs | None]] = (
            [*tokens, *((t.token, t) for t in answer.take_logprobs())] if take else tokens
        )
        offsets = self._offsets.setdefault(answer.index, _Offsets(self._tokenizer))
        return {
            "index": answer.index,
            "text": text,
            "logprobs": offsets.write(taken) if self._logprobs else None,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }


class _Offsets:
    """Writes log-probabilities, knowing how much text the tokens so far have brought."""

    def __init__(self, tokenizer: Tokenizer, num_silent: int = 0) -> None:
        self._tokenizer = tokenizer
        self._text = Detokenizer(tokenizer)
        self._length = 0
        self._num_silent = num_silent  # first tokens that stand for no text of the user's

    def write(self, tokens: Sequence[tuple[int, TokenLogprobs | None]]) -> dict[str, Any]:
        written: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, logprobs in tokens:
            written["tokens"].append(self._spell(token))
            written["text_offset"].append(self._length)
            text = self._text.push([token])
            self._length += 0 if self._num_silent > 0 else len(text)
            self._num_silent -= 1
            if logprobs is None:  # the first token of a prompt follows nothing
                written["token_logprobs"].append(None)
                written["top_logprobs"].append(None)
                continue
            top = {self._spell(t): finite(value) for t, value in reversed(logprobs.top)}
            top.setdefault(self._spell(token), finite(logprobs.logprob))
            written["token_logprobs"].append(finite(logprobs.logprob))
            written["top_logprobs"].append(top)
        return written

    def _spell(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode(errors="replace")

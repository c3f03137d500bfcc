"""The Python interface: a model that completes, chats and streams."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from .ledger import Ledger
from .loader import load
from .outputs import Completion, RequestOutput
from .sampling import ParamError, SamplingParams, child_seed, fresh_seed
from .stack import Stack
from .types import F32

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A model. Arguments are those of `narrows.loader.load`.

    >>> llm = LLM("smollm2")
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text

    One thread uses it at a time; several streams may be read in turns.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "smollm2",
        stack: Stack | str | None = None,
        weights: str | None = None,
        *,
        num_threads: int | None = None,
        max_model_len: int | None = None,
        kv_cache_bytes: int | None = None,
        cache: bool = True,
        progress: bool = True,
    ) -> None:
        loaded = load(
            model,
            stack,
            weights=weights,
            num_threads=num_threads,
            max_model_len=max_model_len,
            kv_cache_bytes=kv_cache_bytes,
            cache=cache,
            progress=progress,
        )
        self.loaded = loaded
        self.engine, self.tokenizer, self.chat_template = loaded.engine, loaded.tokenizer, loaded.chat_template
        self._growing: dict[str, Completion] = {}  # by id of the engine's request

    @property
    def stack(self) -> Stack:
        return self.loaded.stack

    @property
    def num_threads(self) -> int:
        return self.loaded.model.num_threads

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and answer together, in tokens."""
        return self.engine.max_model_len

    @property
    def ledger(self) -> Ledger:
        """Totals since the model was loaded."""
        return self.engine.ledger

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Completes prompts, texts or token ids, together; results are in their order.

        `params` are for all prompts, or one for each. Raises ValueError (RequestError, ParamError, ...) when a prompt
        or a parameter is not acceptable, and then produces nothing.
        """
        return self._run(_several(prompts), params, progress)

    def embed(self, prompts: Prompt | Sequence[Prompt], *, progress: bool = False) -> F32:
        """Embeddings [N, H] of prompts, texts or token ids: the mean of hidden states after the last norm, at length 1.

        Raises ValueError (RequestError, ...) when a prompt is not acceptable, and then produces nothing.
        """
        outputs = self._run(_several(prompts), None, progress, embed=True)
        found = [output.outputs[0].embedding for output in outputs]
        return np.array(found, np.float32).reshape(len(found), self.loaded.spec.hidden_size)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        **variables: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several together. `variables` go to the chat template."""
        single = len(messages) == 0 or isinstance(messages[0], Mapping)
        chats: Any = [messages] if single else messages
        return self._run([self.chat_template.encode(chat, **variables) for chat in chats], params, progress)

    def stream(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None, **variables: Any
    ) -> Stream:
        """Completes a prompt, or answers a conversation, as an iterator over pieces of text; `.output` is the whole."""
        params = params or SamplingParams()
        if params.n != 1:
            raise ParamError("n", f"is {params.n}; a stream gives one answer")
        if not isinstance(prompt, str) and len(prompt) and isinstance(prompt[0], Mapping):
            prompt = self.chat_template.encode(prompt, **variables)  # type: ignore[arg-type]
        return Stream(self, prompt, params)  # type: ignore[arg-type]

    def _run(
        self, prompts: Sequence[Prompt], params: Any, progress: bool, *, embed: bool = False
    ) -> list[RequestOutput]:
        each = [params or SamplingParams()] * len(prompts) if not isinstance(params, list | tuple) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts but {len(each)} sampling parameters")
        jobs: list[_Job] = []
        bar = Progress(console=Console(stderr=True), transient=True, disable=not progress)
        try:
            for prompt, p in zip(prompts, each, strict=True):
                jobs.append(_Job(self, prompt, p, embed))
            left = jobs
            with bar:
                task = bar.add_task("embedding" if embed else "generating", total=len(jobs))
                while left := [job for job in left if not job.output.finished]:
                    bar.update(task, completed=len(jobs) - len(left))
                    self._step()
            return [job.output for job in jobs]
        finally:
            for job in jobs:
                job.close()

    def _step(self) -> None:
        try:
            results = self.engine.step()
        except BaseException:
            for id in self._growing.keys() - self.engine.requests.keys():
                self._growing.pop(id).abort()
            raise
        for result in results:
            completion = self._growing[result.request.id]
            completion.push(result)
            if completion.finished:
                self._end(completion)

    def _end(self, completion: Completion) -> None:
        """Forgets an answer; one that was still growing is aborted where it is."""
        reason = "stop" if completion.finished else "abort"
        self.engine.abort(completion.request.id, reason)
        completion.abort()
        self._growing.pop(completion.request.id, None)


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    single = isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], str | Sequence))
    return [prompts] if single else list(prompts)  # type: ignore[list-item]


class _Job:
    """A prompt whose n answers are under way."""

    def __init__(self, llm: LLM, prompt: Prompt, params: SamplingParams, embed: bool = False) -> None:
        self._llm = llm
        text = prompt if isinstance(prompt, str) else None
        tokens = llm.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        seed = fresh_seed() if params.seed is None else params.seed
        requests = [llm.engine.add(tokens, params, seed=child_seed(seed, i), embed=embed) for i in range(params.n)]
        self._completions = [Completion(request, llm.tokenizer, i) for i, request in enumerate(requests)]
        llm._growing.update((c.request.id, c) for c in self._completions)
        first = self._completions[0]
        self.output = RequestOutput(
            request_id=first.request.id,
            prompt=text,
            prompt_token_ids=first.request.tokens[: first.request.num_prompt],
            prompt_logprobs=first.prompt_logprobs,
            outputs=[c.output for c in self._completions],
        )

    def close(self) -> None:
        for completion in self._completions:
            self._llm._end(completion)


class Stream(Iterator[str]):
    """Pieces of text as they become certain. `output` is all there is so far; closing early aborts the request."""

    def __init__(self, llm: LLM, prompt: Prompt, params: SamplingParams) -> None:
        self._llm = llm
        self._sent = 0
        self._job: _Job | None = None  # while __init__ may still fail
        self._job = _Job(llm, prompt, params)
        self.output = self._job.output

    def __next__(self) -> str:
        answer = self.output.outputs[0]
        while len(answer.text) == self._sent and answer.finish_reason is None:
            self._llm._step()
        if len(answer.text) == self._sent:
            raise StopIteration
        delta, self._sent = answer.text[self._sent :], len(answer.text)
        return delta

    def close(self) -> None:
        """Ends the request if it has not ended."""
        if self._job is not None:
            self._job.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

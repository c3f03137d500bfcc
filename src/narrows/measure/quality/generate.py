"""Greedy answers to many prompts, a few under way at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from narrows.outputs import CompletionOutput
from narrows.sampling import SamplingParams

if TYPE_CHECKING:
    from narrows import LLM

AT_ONCE = 16  # requests under way: a step reads the weights once for all of them


def is_chat(model: LLM) -> bool:
    """Whether the model takes conversations; a base model is given texts to go on with."""
    return model.chat_template.source is not None


def ask(text: str) -> list[dict[str, str]]:
    """A conversation of one question."""
    return [{"role": "user", "content": text}]


def answers(
    model: LLM,
    prompts: Sequence[Any],
    max_tokens: int,
    stop: Sequence[str] = (),
    done: Callable[[int, str], bool] = lambda index, text: False,
    at_once: int = AT_ONCE,
) -> Iterator[tuple[int, CompletionOutput]]:
    """(index of the prompt, answer), each as it ends, in whatever order.

    Prompts are texts, token ids or conversations. An answer also ends where `done(index, text so far)` says so.
    """
    params = SamplingParams(temperature=0, max_tokens=max_tokens, stop=tuple(stop))
    waiting, streams = deque(enumerate(prompts)), {}
    try:
        while waiting or streams:
            while waiting and len(streams) < at_once:
                index, prompt = waiting.popleft()
                streams[index] = model.stream(prompt, params)
            next(next(iter(streams.values())), None)  # a step, which advances all of them
            for index, stream in list(streams.items()):
                answer = stream.output.outputs[0]
                if answer.finish_reason is not None or done(index, answer.text):
                    stream.close()
                    del streams[index]
                    yield index, answer
    finally:
        for stream in streams.values():
            stream.close()

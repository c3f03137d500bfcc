"""What the engine accepts as a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index


class RequestError(ValueError):
    """A request that cannot be served; the message says what is wrong with it."""


class ContextLengthError(RequestError):
    """A prompt that leaves no room for an answer."""

    def __init__(self, num_tokens: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {num_tokens} tokens; the context is {limit} tokens, at least one of them for the answer. "
            f"Shorten the prompt by {num_tokens - limit + 1} tokens or load the model with a larger max_model_len"
        )
        self.num_tokens = num_tokens
        self.limit = limit


def check_prompt(prompt: Sequence[int], vocab_size: int, max_model_len: int, bos_id: int | None) -> list[int]:
    """The ids to read; an empty prompt begins a text. Raises RequestError, ContextLengthError when it does not fit."""
    try:
        tokens = [index(t) for t in prompt]
    except TypeError:
        raise RequestError("the prompt must be a sequence of token ids") from None
    if not tokens:
        if bos_id is None:
            raise RequestError("the prompt is empty, and this model has no token that begins a text")
        tokens = [bos_id]
    bad = next((t for t in tokens if not 0 <= t < vocab_size), None)
    if bad is not None:
        raise RequestError(f"the prompt holds token {bad}, but the vocabulary ends at {vocab_size - 1}")
    if len(tokens) >= max_model_len:
        raise ContextLengthError(len(tokens), max_model_len)
    return tokens

"""What chats and completions have in common: choices, chunks of choices, and usage."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from .answers import Answer, Run
from .bodies import ChoiceStreamOptions
from .errors import ApiError
from .events import DONE, event
from .gateway import Caller, Served


class ChoiceForm(ABC):
    """A `narrows.serve.answers.Form` of choices."""

    prefix: str  # of ids
    object: str
    chunk_object: str

    def __init__(self, served: Served, caller: Caller, streaming: ChoiceStreamOptions) -> None:
        self._tokenizer = served.tokenizer
        self._include_usage, self._include_drafted = streaming.include_usage, streaming.include_drafted
        self._head = {
            "id": f"{self.prefix}-{caller.request_id}",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": served.fingerprint,
        }

    @abstractmethod
    def whole(self, answer: Answer) -> dict[str, Any]:
        """The choice of a finished answer."""

    @abstractmethod
    def first(self, answer: Answer) -> list[dict[str, Any]]:
        """Choices of the chunks that open an answer's stream."""

    @abstractmethod
    def piece(self, answer: Answer, text: str) -> list[dict[str, Any]]:
        """Choices of the chunks for new text, which is empty only when the answer is finished."""

    def body(self, run: Run) -> dict[str, Any]:
        choices = [self.whole(answer) for answer in run.answers]
        return {**self._head, "object": self.object, "choices": choices, "usage": _usage(run), "ledger": run.ledger}

    async def stream(self, run: Run) -> AsyncIterator[bytes]:
        head = {**self._head, "object": self.chunk_object}
        no_usage = {"usage": None} if self._include_usage else {}
        opened: set[int] = set()
        try:
            async for answer, text in run.news():
                choices = []
                if answer.index not in opened:
                    opened.add(answer.index)
                    choices += self._marked(self.first(answer), False)
                if text or answer.finish_reason:
                    choices += self._marked(self.piece(answer, text), answer.drafted)
                for choice in choices:
                    yield event({**head, "choices": [choice], **no_usage})
        except ApiError as error:  # the status went out long ago
            yield event(error.body)
            return
        if self._include_usage:
            yield event({**head, "choices": [], "usage": _usage(run), "ledger": run.ledger})
        yield DONE

    def _marked(self, choices: list[dict[str, Any]], drafted: bool) -> list[dict[str, Any]]:
        return [{**choice, "drafted": drafted} for choice in choices] if self._include_drafted else choices


def _usage(run: Run) -> dict[str, Any]:
    return {
        "prompt_tokens": run.num_prompt,
        "completion_tokens": run.num_output,
        "total_tokens": run.num_prompt + run.num_output,
        "prompt_tokens_details": {"cached_tokens": run.num_cached},
    }

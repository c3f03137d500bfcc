"""A model that says what it is told to: what measures of tasks ask of an LLM, and no more."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class FakeLLM:
    """`answer` turns a prompt (text, conversation or ids) into what the model says, three characters a step."""

    def __init__(self, answer: Callable[[Any], str], chat: bool = True, max_model_len: int = 1 << 20) -> None:
        self.answer, self.max_model_len = answer, max_model_len
        self.opened = self.closed = 0
        self.words: dict[str, int] = {}
        encode = self._encode
        self.tokenizer = SimpleNamespace(encode=lambda text, add_special=True: encode(text))
        self.chat_template = SimpleNamespace(
            source="template" if chat else None,
            encode=lambda messages: encode("<user> " + messages[0]["content"] + " <assistant>"),
        )

    def _encode(self, text: str) -> list[int]:
        return [self.words.setdefault(w, len(self.words)) for w in re.findall(r"\s*[\w<>]+|\s*[^\w\s]|\s+", text)]

    def decode(self, ids: list[int]) -> str:
        pieces = list(self.words)
        return "".join(pieces[i] for i in ids)

    def stream(self, prompt: Any, params: Any) -> Any:
        self.opened += 1
        return _Stream(self, self.answer(prompt))


class _Stream:
    def __init__(self, llm: FakeLLM, text: str) -> None:
        self._llm, self._left = llm, text
        self._answer = SimpleNamespace(text="", token_ids=[], finish_reason=None)
        self.output = SimpleNamespace(outputs=[self._answer])

    def __next__(self) -> str:
        piece, self._left = self._left[:3], self._left[3:]
        self._answer.text += piece
        self._answer.token_ids.append(0)
        if not self._left:
            self._answer.finish_reason = "stop"
        return piece

    def close(self) -> None:
        self._llm.closed += 1

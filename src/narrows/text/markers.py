"""Tells the special tokens a chat template wrote from those that came with a message.

Text that a user, a tool or a document supplies may spell out a special token, `<|im_end|>` say. Once it stands in the
rendered prompt nothing tells it from one the template wrote, and it would close the turn of the user. So a seal, text
that occurs nowhere else, is put into the values before they are rendered, behind the first character of a marker: what
still reads as a marker in the result was written by the template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any


class Markers:
    """The texts of a vocabulary's special tokens."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(filter(None, texts))
        self._lengths = sorted({len(text) for text in self._texts}, reverse=True)
        self._beginning = _any_of(text[:4] for text in self._texts)
        # letters are in ordinary text all the time
        self._opening = _any_of(text[0] for text in self._texts if not text[0].isalnum())

    def find(self, text: str) -> list[str]:
        """The markers in a text, from the left, the longest where several begin."""
        return [text[start:end] for start, end in self._spans(text)]

    def holding(self, word: str) -> str | None:
        """A marker that `word` is part of."""
        return min((text for text in self._texts if word in text), default=None)

    def opens(self, value: Any) -> bool:
        """Whether any string of a JSON value has a character that opens a marker."""
        return any(self._opening.search(text) for text in _strings(value))

    def mark(self, value: Any, seal: str) -> Any:
        """`value` with `seal` inside each marker that its strings hold."""
        return _map(value, lambda text: self._sealed(text, seal))

    def mark_openings(self, value: Any, seal: str) -> Any:
        """`value` with `seal` behind each character that opens a marker, so that nothing in it can become one."""
        return _map(value, lambda text: self._opening.sub(lambda hit: hit[0] + seal, text))

    def parts(self, text: str, seal: str) -> list[tuple[str, bool]]:
        """Cuts a rendered text into (part, whether its markers are special tokens), seals removed."""
        parts: list[tuple[str, bool]] = []
        own, at = "", 0  # what the template wrote, up to `at`
        for start, end in [*self._spans(text), (len(text), len(text))]:
            if seal in text[at:start]:
                parts += [(own, True), (text[at:start].replace(seal, ""), False)]
                own = ""
            else:
                own += text[at:start]
            own, at = own + text[start:end], end
        return [*parts, (own, True)]

    def _spans(self, text: str) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        at = 0
        while hit := self._beginning.search(text, at):
            start = hit.start()
            length = next((n for n in self._lengths if text[start : start + n] in self._texts), 0)
            if length:
                spans.append((start, start + length))
            at = start + max(length, 1)
        return spans

    def _sealed(self, text: str, seal: str) -> str:
        cuts = [0, *(start + 1 for start, _ in self._spans(text)), len(text)]
        return seal.join(text[a:b] for a, b in pairwise(cuts))


def _strings(value: Any) -> Iterable[str]:
    """All strings of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _map(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map(item, change) for key, item in value.items()}
    return [_map(item, change) for item in value] if isinstance(value, list) else value


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(set(texts)))) or "(?!)")

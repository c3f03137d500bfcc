"""A JSON value that arrives a character at a time."""

from __future__ import annotations

import json

_PLAIN = frozenset(" \t\r\n:,+-.0123456789eEtrufalsn")  # what JSON is made of, but for strings and brackets


class JsonValue:
    """A JSON object or list being read; only its brackets and strings are understood."""

    def __init__(self, before: str) -> None:
        self._pieces = [before]
        self._num_before = len(before)
        self._in_string = self._escaped = False
        self._seen = 0  # opening brackets
        self.depth = 0
        self.announced = self.in_arguments = False
        self.opens_an_object = False  # the last character opened the first object inside of the outermost
        self.shown = ""  # the last character, as JSON allows it

    @property
    def raw(self) -> str:
        return "".join(self._pieces)

    @property
    def text(self) -> str:
        return self.raw[self._num_before :]

    @property
    def begun(self) -> bool:
        return self._seen > 0

    def add(self, character: str) -> bool:
        """Takes a character; false when no JSON object or list goes on with it."""
        self._pieces.append(character)
        self.shown = character
        self.opens_an_object = False
        if self._in_string:
            if character < " ":
                self.shown = json.dumps(character)[1:-1]
            self._in_string = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
        elif character in "{[":
            self.depth += 1
            self._seen += 1
            self.opens_an_object = self._seen == self.depth == 2 and character == "{"
        elif not self.begun:
            return character.isspace()
        elif character in "}]":
            self.depth -= 1
        elif character == '"':
            self._in_string = True
        else:
            return character in _PLAIN
        return True

"""Finds tool calls in the text of an answer while it is written.

The text is read a character at a time, so that what comes out does not depend on how it was cut into pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')
_PLAIN = frozenset(" \t\r\n:,+-.0123456789eEtrufalsn")  # what JSON is made of, but for strings and brackets


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes its calls: JSON objects with a name and an object of arguments, marked in some way."""

    name: str
    opening: str  # what announces a call; none where an answer that begins with an object is one
    closing: str
    arguments: str  # the key of the arguments
    separators: str  # characters that may stand between calls


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", "arguments", " \t\r\n")
LLAMA3 = ToolFormat("llama3", "", "", "parameters", " \t\r\n;,")


def tool_format(template: str | None) -> ToolFormat | None:
    """The format that a chat template teaches its model; None where it has no place for tools."""
    template = template or ""
    if "tools" not in template:
        return None
    if HERMES.opening in template:
        return HERMES
    return LLAMA3 if re.search(r'"name": function name, ?"parameters"|<\|python_tag\|>', template) else None


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a known tool begins; `head` is the text up to its arguments."""

    index: int
    name: str
    head: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of a call, as JSON text."""

    index: int
    text: str


Event = Content | CallStart | Arguments


class ToolCallReader:
    """Cuts the text of an answer into content and calls of the tools `names`.

    A call is announced when its name and the beginning of its arguments are there, and its arguments follow as they
    come, as they were written except that raw control characters in strings are escaped. What is not a call of a known
    tool is content, as it stands. One that breaks within its arguments ends there, the rest being content.
    """

    def __init__(self, format: ToolFormat, names: Collection[str]) -> None:
        self.num_calls = 0
        self._format = format
        self._names = frozenset(names)
        self._events: list[Event] = []
        self._held = ""  # may be the space before a call, and the beginning of a marker
        self._fresh = not format.opening  # nothing but separators since the last call
        self._value: _Value | None = None  # the call being read

    def push(self, text: str) -> list[Event]:
        """What is certain after this text."""
        for character in text:
            if self._value is None:
                self._read_content(character)
            else:
                self._read_call(character)
        return self._flush()

    def finish(self) -> list[Event]:
        """What is left at the end of the answer."""
        if self._value is not None:
            rest = "" if self._value.announced else self._value.raw
        else:
            rest = self._shown(self._held)
        self._value, self._held = None, ""
        self._emit_content(rest)
        return self._flush()

    def _read_content(self, character: str) -> None:
        held = self._held = self._held + character
        form, text = self._format, held.lstrip(self._format.separators)
        if form.opening:
            if text == form.opening:
                self._begin(held)
            elif self._fresh and text == form.closing:
                self._held = ""
            elif not form.opening.startswith(text) and not (self._fresh and form.closing.startswith(text)):
                self._release()
        elif self._fresh and text in ("{", "["):
            self._begin(held[:-1])
            self._read_call(character)
        elif not self._fresh or text:
            self._emit_content(self._shown(held))
            self._held, self._fresh = "", False

    def _release(self) -> None:
        """Lets go of held text that is no marker, but for the end of it that may still be one."""
        held, opening = self._held, self._format.opening
        kept = next(n for n in range(min(len(held), len(opening)), -1, -1) if held.endswith(opening[:n]))
        end = len(held[: len(held) - kept].rstrip())
        self._emit_content(self._shown(held[:end]))
        self._held, self._fresh = held[end:], False

    def _shown(self, text: str) -> str:
        """Text as content: without what merely separates calls."""
        if not (self._fresh and self.num_calls):
            return text
        text = text.lstrip(self._format.separators)
        return "" if self._format.closing.startswith(text) else text

    def _begin(self, raw: str) -> None:
        self._value, self._held = _Value(raw), ""

    def _read_call(self, character: str) -> None:
        value = self._value
        assert value is not None
        if not value.add(character):  # no JSON: what was not announced is content after all
            self._value, self._fresh = None, value.announced and not value.in_arguments
            self._emit_content("" if value.announced else value.raw[:-1])
            self._read_content(character)
            return
        if value.in_arguments:
            self._emit_arguments(value.shown)
            value.in_arguments = value.depth > 1
        elif value.opens_an_object and (name := self._name(value.text[:-1])):
            value.announced = value.in_arguments = True
            self._announce(name, value.raw[:-1])
            self._emit_arguments("{")
        if value.begun and not value.depth:
            self._close(value)

    def _name(self, head: str) -> str | None:
        """The known tool that a call names right before its arguments."""
        match = _HEAD.fullmatch(head)
        name = _parse(match[1]) if match else None
        return name if name in self._names else None

    def _close(self, value: _Value) -> None:
        calls = [] if value.announced else self._calls(value.text)
        self._value, self._fresh = None, calls is not None
        if calls is None:
            self._emit_content(value.raw)
        for name, arguments in calls or []:
            self._announce(name, "")
            self._emit_arguments(arguments)

    def _calls(self, text: str) -> list[tuple[str, str]] | None:
        """The calls in a whole JSON value, an object or a list of them; None if it holds anything else."""
        found, calls = _parse(text), []
        for call in found if isinstance(found, list) else [found]:
            name = call.get("name") if isinstance(call, dict) else None
            if not isinstance(name, str) or name not in self._names:
                return None
            arguments = call.get("arguments", call.get("parameters", {}))
            if isinstance(arguments, str):  # JSON in JSON, as some models write it
                arguments = _parse(arguments or "{}")
            if not isinstance(arguments, dict):
                return None
            calls.append((name, json.dumps(arguments)))
        return calls or None

    def _announce(self, name: str, head: str) -> None:
        self._events.append(CallStart(self.num_calls, name, head))
        self.num_calls += 1

    def _emit_content(self, text: str) -> None:
        if not text:
            return
        if self._events and isinstance(last := self._events[-1], Content):
            self._events[-1] = Content(last.text + text)
        else:
            self._events.append(Content(text))

    def _emit_arguments(self, text: str) -> None:
        last, index = self._events[-1] if self._events else None, self.num_calls - 1
        if isinstance(last, Arguments) and last.index == index:
            self._events[-1] = Arguments(index, last.text + text)
        else:
            self._events.append(Arguments(index, text))

    def _flush(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class _Value:
    """A JSON object or list being read; only its brackets and strings are understood."""

    __slots__ = (
        "_escaped",
        "_in_string",
        "_num_before",
        "_pieces",
        "_seen",
        "announced",
        "depth",
        "in_arguments",
        "shown",
    )

    def __init__(self, before: str) -> None:
        self._pieces = [before]
        self._num_before = len(before)
        self._in_string = self._escaped = False
        self._seen = 0  # opening brackets
        self.depth = 0
        self.announced = self.in_arguments = False
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

    @property
    def opens_an_object(self) -> bool:
        """Whether the last character opened the first object inside of the outermost."""
        return self._seen == self.depth == 2 and self._pieces[-1] == "{"

    def add(self, character: str) -> bool:
        """Takes a character; false when no JSON object or list goes on with it."""
        self._pieces.append(character)
        self.shown = character
        if self._in_string:
            if character < " ":
                self.shown = json.dumps(character)[1:-1]
            self._in_string = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
        elif character in "{[":
            self.depth += 1
            self._seen += 1
        elif not self.begun:
            return character.isspace()
        elif character in "}]":
            self.depth -= 1
        elif character == '"':
            self._in_string = True
        else:
            return character in _PLAIN
        return True


def _parse(text: str) -> Any:
    """The value of a JSON text; None for what is none."""
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")

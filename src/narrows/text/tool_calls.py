"""Finds tool calls in the text of an answer while it is written.

The text is read a character at a time, so that what comes out does not depend on how it was cut into pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from .json_value import JsonValue

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')


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
        self._space: list[str] = []  # held, for it may stand before a call
        self._mark = ""  # held after it, for it may become a marker
        self._fresh = not format.opening  # nothing but separators since the last call
        self._value: JsonValue | None = None  # the call being read

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
            rest = self._shown(self._take_space() + self._mark)
        self._value, self._mark = None, ""
        self._emit_content(rest)
        return self._flush()

    def _read_content(self, character: str) -> None:
        form, opening = self._format, self._format.opening
        if not self._mark and character in form.separators and (opening or self._fresh):
            self._space.append(character)
            return
        mark = self._mark = self._mark + character
        if opening:
            if mark == opening:
                self._begin(mark)
            elif self._fresh and mark == form.closing:
                self._space, self._mark = [], ""
            elif not opening.startswith(mark) and not (self._fresh and form.closing.startswith(mark)):
                kept = next(n for n in range(len(opening), -1, -1) if mark.endswith(opening[:n]))
                self._release(mark[: len(mark) - kept], opening[:kept])
        elif self._fresh and mark in "{[":
            self._begin("")
            self._read_call(character)
        else:
            self._release(mark, "")

    def _release(self, text: str, mark: str) -> None:
        """Lets go of held text that is no marker, but for what may still begin one."""
        shown = text.rstrip(self._format.separators) if self._format.opening else text
        self._emit_content(self._shown(self._take_space() + shown))
        self._space, self._mark, self._fresh = list(text[len(shown) :]), mark, False

    def _take_space(self) -> str:
        space, self._space = "".join(self._space), []
        return space

    def _shown(self, text: str) -> str:
        """Text as content: without what merely separates calls."""
        if not (self._fresh and self.num_calls):
            return text
        text = text.lstrip(self._format.separators)
        return "" if self._format.closing.startswith(text) else text

    def _begin(self, mark: str) -> None:
        self._value, self._mark = JsonValue(self._take_space() + mark), ""

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

    def _close(self, value: JsonValue) -> None:
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
        if text:
            self._events.append(Content(text))

    def _emit_arguments(self, text: str) -> None:
        self._events.append(Arguments(self.num_calls - 1, text))

    def _flush(self) -> list[Event]:
        """The events so far, with neighbours that belong together made one."""
        merged: list[Event] = []
        for _, group in groupby(self._events, lambda event: (type(event), getattr(event, "index", 0))):
            first, *rest = events = list(group)
            if rest and not isinstance(first, CallStart):
                first = replace(first, text="".join(e.text for e in events if not isinstance(e, CallStart)))
            merged.append(first)
        self._events = []
        return merged


def _parse(text: str) -> Any:
    """The value of a JSON text; None for what is none."""
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")

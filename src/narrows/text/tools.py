"""Tools between OpenAI's requests and a model's text.

    use = ToolUse.of(body.get("tools"), body.get("tool_choice"), body.get("parallel_tool_calls"), template.source)
    ids = template.encode(use.messages(messages), **use.variables)
    params = SamplingParams(structured_outputs=use.structured_outputs, ...)  # None unless a call is required
    reader = use.reader()                                    # one for each answer
    deltas = [delta(event) for event in reader.push(text)]   # and of reader.finish() at the end
    reason = "tool_calls" if reader.num_calls else finish_reason
    message = use.message(whole_text)                        # without streaming

`ToolUse.of` raises ParamError, whose field is `tools[0].function.name`, `tool_choice`, ...
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..constrain.grammar import JSON_OPTIONS
from ..sampling import MAX_GRAMMAR_BYTES, ParamError
from .tool_calls import HERMES, Arguments, CallStart, Content, Event, ToolCallReader, ToolFormat, tool_format
from .tool_prompt import teach

MAX_TOOLS = 128
MAX_CALLS = 16  # in one answer that has to be calls: a small model may repeat itself
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request, and what it wants of them."""

    tools: tuple[dict[str, Any], ...]  # as in the request
    required: tuple[str, ...]  # the answer is a call, or calls, of these; none: as the model likes
    parallel: bool
    format: ToolFormat | None  # None without tools
    taught: bool  # calls are shown as text, as the chat template knows nothing of tools, or writes them in other ways

    @classmethod
    def of(cls, tools: Any, choice: Any, parallel: Any, template: str | None) -> ToolUse:
        """From a request's `tools`, `tool_choice` and `parallel_tool_calls`, and the source of the chat template."""
        checked = _check_tools(tools)
        names = tuple(tool["function"]["name"] for tool in checked)
        if parallel is not None and not isinstance(parallel, bool):
            raise ParamError("parallel_tool_calls", "must be true or false")
        required = _check_choice(choice, names)
        own = tool_format(template)
        if not checked or choice == "none":
            return cls((), (), True, None, own is None)
        return cls(checked, required, parallel is not False, own or HERMES, own is None)

    @property
    def variables(self) -> dict[str, Any]:
        """What the chat template is given."""
        return {"tools": list(self.tools)} if self.tools and not self.taught else {}

    def messages(self, messages: Any) -> Any:
        """The messages that the chat template is given. Raises TemplateError."""
        return teach(messages, self.tools) if self.taught and (self.tools or _speak_of_calls(messages)) else messages

    @property
    def structured_outputs(self) -> dict[str, Any] | None:
        """The form of an answer that has to be a call; None where the model may choose."""
        if not self.required or self.format is None:
            return None
        functions = [t["function"] for t in self.tools if t["function"]["name"] in self.required]
        if len(functions) == 1:
            call = self._schema(functions[0], "")
        else:
            call = {"anyOf": [self._schema(function, f"/anyOf/{i}") for i, function in enumerate(functions)]}
        if not self.format.opening:
            return {"json": call}
        call["x-guidance"] = JSON_OPTIONS
        opening, closing = json.dumps(self.format.opening + "\n"), json.dumps("\n" + self.format.closing)
        rest = f' ("\\n" call){{0,{MAX_CALLS - 1}}}' if self.parallel else ""
        return {"grammar": f"start: call{rest}\ncall: {opening} body {closing}\nbody: %json {json.dumps(call)}\n"}

    def reader(self) -> ToolCallReader | None:
        """What finds the calls in an answer; None when there are no tools."""
        if self.format is None:
            return None
        return ToolCallReader(self.format, [tool["function"]["name"] for tool in self.tools])

    def message(self, text: str) -> dict[str, Any]:
        """A whole answer as OpenAI's message. A call whose arguments are not a JSON object is content, as it stands."""
        reader = self.reader()
        events: list[Event] = [Content(text)] if reader is None else [*reader.push(text), *reader.finish()]
        arguments: dict[int, str] = {}
        for event in events:
            if isinstance(event, Arguments):
                arguments[event.index] = arguments.get(event.index, "") + event.text
        content, calls = "", []
        for event in events:
            if isinstance(event, Content):
                content += event.text
            elif isinstance(event, CallStart):
                given = arguments[event.index]
                if _is_object(given):
                    calls.append(_call(event.name, given))
                else:
                    content += event.head + given
        message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
        return message | ({"tool_calls": calls} if calls else {})

    def _schema(self, function: dict[str, Any], place: str) -> dict[str, Any]:
        """The schema of a call of a function, itself to stand at `place` of a larger one."""
        assert self.format is not None
        key = self.format.arguments
        parameters = _moved(function.get("parameters") or NO_PARAMETERS, f"#{place}/properties/{key}")
        properties = {"name": {"const": function["name"]}, key: parameters}
        return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _speak_of_calls(messages: Any) -> bool:
    known = (m for m in messages if isinstance(m, Mapping)) if isinstance(messages, list | tuple) else ()
    return any(m.get("tool_calls") or m.get("role") == "tool" for m in known)


def _moved(schema: Any, root: str) -> Any:
    """A schema with its references to itself leading to `root`, where it will be."""
    if isinstance(schema, list):
        return [_moved(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, root) for key, value in schema.items()}
    if isinstance(reference := moved.get("$ref"), str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved


def delta(event: Event) -> dict[str, Any]:
    """An event as the delta of OpenAI's chunk: first the id and name of a call, then its arguments piece by piece."""
    if isinstance(event, Content):
        return {"content": event.text}
    if isinstance(event, CallStart):
        return {"tool_calls": [{"index": event.index, **_call(event.name, "")}]}
    return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}


def _call(name: str, arguments: str) -> dict[str, Any]:
    id = f"call_{secrets.token_hex(12)}"
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _check_tools(tools: Any) -> tuple[dict[str, Any], ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise ParamError("tools", f"must be a list of at most {MAX_TOOLS} tools")
    names: set[str] = set()
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
            raise ParamError(where, 'must be {"type": "function", "function": {...}}')
        function = tool["function"]
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ParamError(f"{where}.function.name", "must be 1 to 64 letters, digits, dots, dashes or underscores")
        if name in names:
            raise ParamError(f"{where}.function.name", f"{name!r} is there twice")
        names.add(name)
        if not isinstance(function.get("description") or "", str):
            raise ParamError(f"{where}.function.description", "must be a string")
        if not isinstance(function.get("parameters") or {}, dict):
            raise ParamError(f"{where}.function.parameters", "must be a JSON schema, which is an object")
        _check_size(f"{where}.function", function)
    return tuple(tools)


def _check_size(where: str, value: Any) -> None:
    try:
        size = len(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ParamError(where, f"is not JSON: {str(error)[:80]}") from None
    if size > MAX_GRAMMAR_BYTES:
        raise ParamError(where, f"has {size} bytes as JSON; at most {MAX_GRAMMAR_BYTES} are allowed")


def _check_choice(choice: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names a call is required of."""
    if choice in (None, "auto", "none"):
        return ()
    if choice == "required":
        if not names:
            raise ParamError("tool_choice", 'is "required", but there are no tools')
        return names
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise ParamError(
            "tool_choice", 'must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
        )
    if name not in names:
        raise ParamError("tool_choice", f"names {name[:64]!r}, which is not among the tools")
    return (name,)

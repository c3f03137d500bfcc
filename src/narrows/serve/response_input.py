"""What /v1/responses is given, as chats have it: items as messages, tools, the form of the text."""

from __future__ import annotations

import re
from typing import Any

from ..sampling import ParamError
from ..text.tools import ToolUse
from .bodies import ResponsesRequest, json_form
from .errors import ApiError

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TEXTS = ("input_text", "output_text", "text")


def messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    """The input as the messages of a chat; what they hold is checked as that of a chat is. Raises ApiError."""
    found: list[dict[str, Any]] = []
    if body.instructions is not None:
        found.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*found, {"role": "user", "content": body.input}]
    if not isinstance(body.input, list) or not all(isinstance(item, dict) for item in body.input):
        raise ApiError(400, "input must be a text or a list of items, which are objects", param="input")
    for i, item in enumerate(body.input):
        kind = item.get("type", "message")
        if kind == "message":
            role = item.get("role")
            found.append({"role": "system" if role == "developer" else role, "content": _content(item.get("content"))})
        elif kind == "function_call":
            call_id, name, arguments = _strings(item, f"input[{i}]", "call_id", "name", "arguments")
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": None})
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            found[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            (call_id,) = _strings(item, f"input[{i}]", "call_id")
            found.append({"role": "tool", "tool_call_id": call_id, "content": _content(item.get("output"))})
        else:
            message = f"input[{i}] is a {str(kind)[:50]!r}; there are messages, function_call and function_call_output"
            raise ApiError(400, message, param="input")
    return found


def _content(content: Any) -> Any:
    """Its parts of text by the name that chats have for them."""
    if not isinstance(content, list):
        return content
    return [
        {**part, "type": "text"} if isinstance(part, dict) and part.get("type") in _TEXTS else part for part in content
    ]


def _strings(item: dict[str, Any], where: str, *names: str) -> list[str]:
    for name in names:
        if not isinstance(item.get(name), str):
            raise ApiError(400, f"{where}.{name} must be a string", param="input")
    return [item[name] for name in names]


def tool_use(body: ResponsesRequest, template: str | None) -> ToolUse:
    """The functions that may be called: flat here, one deeper in chats. Raises ApiError."""
    tools, choice = body.tools, body.tool_choice
    if isinstance(tools, list):
        tools = [_nested(tool, ("description", "parameters", "strict")) for tool in tools]
    try:
        return ToolUse.of(tools, _nested(choice, ()), body.parallel_tool_calls, template)
    except ParamError as error:
        field = error.field.replace(".function", "", 1)
        message = error.message.replace(error.field, field, 1)
        message = message.replace('"function": {...}}', '"name": ..., "parameters": {...}}')
        raise ApiError(400, message.replace('"function": {"name": ...}', '"name": ...'), param=field) from None


def _nested(value: Any, more: tuple[str, ...]) -> Any:
    if not isinstance(value, dict) or value.get("type") != "function" or "name" not in value:
        return value
    return {"type": "function", "function": {key: value[key] for key in ("name", *more) if value.get(key) is not None}}


def form(text: Any) -> dict[str, Any] | None:
    """`text.format`, which has the schema beside its type, as `structured_outputs`. Raises ApiError."""
    if text is None or text == {}:
        return None
    if not isinstance(text, dict) or not text.keys() <= {"format", "verbosity"}:
        raise ApiError(400, 'text must be {"format": {...}}', param="text")
    wanted = text.get("format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        if not isinstance(name := wanted.get("name", "answer"), str) or not _NAME.fullmatch(name):
            message = "text.format.name must be 1 to 64 letters, digits, dashes or underscores"
            raise ApiError(400, message, param="text.format.name")
        wanted = {"type": "json_schema", "json_schema": wanted}
    return json_form(wanted, "text.format")


def shown_form(text: Any) -> dict[str, Any]:
    """`text` of a response, for one whose form was found to be good."""
    wanted = (text or {}).get("format") or {"type": "text"}
    if wanted["type"] != "json_schema":
        return {"format": {"type": wanted["type"]}}
    shown = {"type": "json_schema", "name": wanted.get("name", "answer"), "schema": wanted["schema"]}
    return {"format": {**shown, "strict": wanted.get("strict") is True}}

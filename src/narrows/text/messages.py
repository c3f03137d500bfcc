"""Checks chat messages and brings them to the plain form templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from narrows.text.errors import TemplateError

MAX_MESSAGES = 16384
MAX_DEPTH = 32


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages as plain dicts of JSON values; raises TemplateError naming the message and field that is wrong.

    ``content`` may be a string, a list of ``{"type": "text", "text": …}`` parts (joined by newlines), or absent or
    None where the message carries tool calls. Fields that are None are dropped. Arguments of tool calls given as
    JSON text are parsed, as templates expect.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TemplateError("messages must be a list of {role, content} objects")
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise TemplateError(f"messages must hold 1 to {MAX_MESSAGES} messages, not {len(messages)}")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of ``value`` made of JSON types only, so that a template never sees a host object."""
    if depth > MAX_DEPTH:
        raise TemplateError(f"{where} is nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_key(k, where): plain(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    raise TemplateError(f"{where} is a {type(value).__name__}; only JSON values may be given to a template")


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise TemplateError(f"{where} has the key {key!r}; keys must be strings")
    return str.__str__(key)


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"{where} must be an object with role and content, not {type(message).__name__}")
    out = {key: value for key, value in plain(message, where).items() if value is not None}
    if not isinstance(out.get("role"), str) or not out["role"]:
        raise TemplateError(f"{where}.role must be a non-empty string")
    calls = out.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise TemplateError(f"{where}.tool_calls must be a list of objects")
        for call in calls:
            _parse_arguments(call.get("function", call))
    if "content" in out:
        out["content"] = _content(out["content"], f"{where}.content")
    elif not calls:
        raise TemplateError(f"{where}.content is missing")
    return out


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TemplateError(f"{where} must be a string or a list of text parts")
    for i, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise TemplateError(f'{where}[{i}] must be {{"type": "text", "text": …}}: the model reads text only')
    return "\n".join(part["text"] for part in content)


def _parse_arguments(function: Any) -> None:
    if isinstance(function, dict) and isinstance(text := function.get("arguments"), str):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return  # not JSON: the template shows the text as it is
        if isinstance(parsed, dict):
            function["arguments"] = plain(parsed, "tool call arguments")

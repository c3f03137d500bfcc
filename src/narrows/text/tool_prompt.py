"""Teaches tools to a model whose chat template does not: by its system message, in the Hermes format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from narrows.text.messages import check_messages
from narrows.text.tool_calls import HERMES

LESSON = (
    "You can call functions. These are their signatures, one a line:\n<tools>\n{tools}\n</tools>\n"
    "To call one, answer with its name and arguments as JSON between tags, a pair of tags for each call:\n"
    f'{HERMES.opening}\n{{{{"name": <name>, "arguments": <object>}}}}\n{HERMES.closing}'
)


def teach(messages: Any, tools: Iterable[Any]) -> list[dict[str, Any]]:
    """Messages that explain `tools`, if any, with calls and their results as text, for a template that knows neither.

    Raises TemplateError, as ``check_messages`` does.
    """
    shown = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    taught: list[dict[str, Any]] = []
    for message in check_messages(messages):
        text = message.get("content", "")
        if message["role"] == "tool":
            result = f"<tool_response>\n{text}\n</tool_response>"
            if taught and taught[-1].pop("is_result", False):  # templates want roles in turns
                result = taught.pop()["content"] + "\n" + result
            taught.append({"role": "user", "content": result, "is_result": True})
        else:
            calls = [_call(call.get("function", call)) for call in message.get("tool_calls", ())]
            taught.append({"role": message["role"], "content": "\n".join(filter(None, [text, *calls]))})
    if shown and taught[0]["role"] == "system":
        taught[0]["content"] += "\n\n" + LESSON.format(tools=shown)
    elif shown:
        taught.insert(0, {"role": "system", "content": LESSON.format(tools=shown)})
    return [{"role": message["role"], "content": message["content"]} for message in taught]


def _call(function: Any) -> str:
    keys = ("name", "arguments") if isinstance(function, dict) else ()
    call = json.dumps({key: function.get(key) for key in keys}, ensure_ascii=False)
    return f"{HERMES.opening}\n{call}\n{HERMES.closing}"

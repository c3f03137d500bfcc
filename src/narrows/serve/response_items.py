"""The output of a response as it grows: messages and calls of functions, each change being an event of the stream."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

from ..text.tool_calls import CallStart, Content, Event

Said = tuple[str, dict[str, Any]]  # an event's type and content


class Items:
    """Items in their order; the last one is open until something else comes."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open = False

    def push(self, event: Event) -> Iterator[Said]:
        """What a piece of the answer changes."""
        if isinstance(event, CallStart):
            yield from self._begin(
                {
                    "id": f"fc_{secrets.token_hex(12)}",
                    "type": "function_call",
                    "status": "in_progress",
                    "call_id": f"call_{secrets.token_hex(12)}",
                    "name": event.name,
                    "arguments": "",
                }
            )
        elif isinstance(event, Content):
            yield from self._in_message()
            self.items[-1]["content"][0]["text"] += event.text
            yield "response.output_text.delta", {**self._part, "delta": event.text, "logprobs": []}
        else:
            self.items[-1]["arguments"] += event.text
            yield "response.function_call_arguments.delta", {**self._place, "delta": event.text}

    def finish(self, cut: bool) -> Iterator[Said]:
        """The end of the answer; `cut` when it is not the model's own. There is at least one item then."""
        if not self.items:
            yield from self._in_message()
        yield from self._close(cut)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    @property
    def _part(self) -> dict[str, Any]:
        return {**self._place, "content_index": 0}

    def _in_message(self) -> Iterator[Said]:
        if self._open and self.items[-1]["type"] == "message":
            return
        message = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "status": "in_progress"}
        yield from self._begin({**message, "role": "assistant", "content": []})
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self.items[-1]["content"].append(part)
        yield "response.content_part.added", {**self._part, "part": dict(part)}

    def _begin(self, item: dict[str, Any]) -> Iterator[Said]:
        yield from self._close(False)
        self.items.append(item)
        self._open = True
        shown = {**item, "content": []} if item["type"] == "message" else dict(item)
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": shown}

    def _close(self, cut: bool) -> Iterator[Said]:
        if not self._open:
            return
        item, self._open = self.items[-1], False
        if item["type"] == "message":
            part = item["content"][0]
            yield "response.output_text.done", {**self._part, "text": part["text"], "logprobs": []}
            yield "response.content_part.done", {**self._part, "part": part}
        else:
            cut = not _is_object(item["arguments"])
            yield "response.function_call_arguments.done", {**self._place, "arguments": item["arguments"]}
        item["status"] = "incomplete" if cut else "completed"
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False

"""OpenAI's published types as a judge: documented fields have the right type, and others are on our list."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

# What docs/serving.md says comes beside OpenAI's fields.
EXTENSIONS = {
    "ledger",
    "choices.stop_reason",
    "response.ledger",
    "root",
    "parent",
    "max_model_len",
    "meta",
}
# Required by OpenAI's specification though they may be null, which its Python types cannot say.
NULLABLE = {
    ChatCompletion: ("choices.logprobs", "choices.finish_reason", "choices.message.content", "choices.message.refusal"),
    ChatCompletionChunk: ("choices.finish_reason",),
    Completion: ("choices.logprobs", "choices.finish_reason"),
    Response: ("error", "incomplete_details", "instructions", "metadata", "temperature", "top_p"),
    Model: (),
}
EVENTS: dict[str, type[BaseModel]] = {
    kind: event
    for event in get_args(get_args(ResponseStreamEvent)[0])
    for kind in get_args(event.model_fields["type"].annotation)
}


def check(type_: type[BaseModel], value: Mapping[str, Any]) -> None:
    """Asserts that a decoded reply or chunk is what OpenAI publishes."""
    model = type_.model_validate_json(json.dumps(value), strict=True)
    unknown = {extra for extra in _extras(model) if extra not in EXTENSIONS}
    assert not unknown, f"{type_.__name__} has no {unknown}"
    for path in NULLABLE.get(type_, ()):
        _present(value, path.split("."))


def check_event(value: Mapping[str, Any]) -> None:
    """The same of an event in the stream of a response."""
    check(EVENTS[value["type"]], value)


def _extras(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from (path + name for name in value.model_extra or {})
        for name, inner in value:
            if name not in (value.model_extra or {}):
                yield from _extras(inner, f"{path}{name}.")
    elif isinstance(value, list):
        for inner in value:
            yield from _extras(inner, path)


def _present(value: Any, path: list[str]) -> None:
    if isinstance(value, list):
        for inner in value:
            _present(inner, path)
    elif path:
        assert path[0] in value, path[0]
        _present(value[path[0]], path[1:])

"""Answers that keep to a form, and calls of tools, through OpenAI's client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from servers import Server

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "people": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def client(smol: Server) -> OpenAI:
    return OpenAI(base_url=f"{smol.url}/v1", api_key="none", max_retries=0)


def is_city(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["city", "people"] and value["city"] in ("Paris", "Rome") and 0 <= value["people"] <= 99


def test_a_schema_is_kept_by_chats_streams_and_responses(client: OpenAI) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    common: Any = {"model": "smollm2", "messages": ASK, "response_format": wanted, "temperature": 0, "max_tokens": 60}
    whole = client.chat.completions.create(**common).choices[0]
    assert whole.finish_reason == "stop" and is_city(whole.message.content or "")
    chunks = list(client.chat.completions.create(**common, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.message.content
    response = client.responses.create(
        model="smollm2",
        input="What is the weather in Paris?",
        text={"format": {"type": "json_schema", "name": "city", "schema": SCHEMA}},
        temperature=0,
        max_output_tokens=60,
    )
    assert response.output_text == whole.message.content


def test_any_object_and_the_forms_of_vllm(client: OpenAI) -> None:
    common: Any = {"model": "smollm2", "temperature": 0, "max_tokens": 40}
    for outputs, holds in (
        ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"regex": "[0-9]{3}-[a-f]{2}"}, lambda text: len(text) == 6 and text[3] == "-"),
        ({"json": SCHEMA}, is_city),
    ):
        done = client.completions.create(prompt="Paris", extra_body={"structured_outputs": outputs}, **common)
        assert holds(done.choices[0].text), outputs


def test_forms_that_cannot_be_kept_are_refused(client: OpenAI) -> None:
    common: Any = {"model": "smollm2", "messages": ASK, "max_tokens": 5}
    must_call = {"tools": [WEATHER], "tool_choice": "required"}
    for body, param, words in (
        ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "an object"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "regex"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "response_format", "both"),
        (must_call | {"response_format": {"type": "json_object"}}, "tool_choice", "response_format"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "function"),
        ({"functions": [{}]}, "functions", "tools"),
    ):
        with pytest.raises(BadRequestError, match=words) as refused:
            client.chat.completions.create(**common, extra_body=body)
        assert refused.value.param == param


def test_a_tool_that_has_to_be_called_is_called(client: OpenAI) -> None:
    common: Any = {"model": "smollm2", "messages": ASK, "tools": [WEATHER], "temperature": 0, "max_tokens": 120}
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    whole = client.chat.completions.create(**common, tool_choice=named, parallel_tool_calls=False).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content is None
    (call,) = whole.message.tool_calls or []
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")

    arguments, names, reasons = "", [], []
    for chunk in client.chat.completions.create(**common, tool_choice=named, parallel_tool_calls=False, stream=True):
        choice = chunk.choices[0]
        reasons.append(choice.finish_reason)
        for part in choice.delta.tool_calls or []:
            names += [part.function.name] if part.function and part.function.name else []
            arguments += (part.function and part.function.arguments) or ""
    assert (names, arguments, reasons[-1]) == (["get_weather"], call.function.arguments, "tool_calls")

    history = [*ASK, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    after = client.chat.completions.create(**common | {"messages": history}, tool_choice="none").choices[0]
    assert after.message.content and not after.message.tool_calls

"""Every reply, chunk and event is of OpenAI's published types, whatever was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from official import check, check_event
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from servers import Server

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "get_weather", "description": "The weather.", "parameters": CITY}
TOOLS = [{"type": "function", "function": FUNCTION}]
FLAT = [{"type": "function", **FUNCTION}]
ASK = [{"role": "user", "content": "the weather in Rome"}]
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "two answers": {"n": 2, "temperature": 1.5},
    "usage": {"stream_options": {"include_usage": True}},
    "stop": {"stop": ["e", "a"], "temperature": 1.5, "seed": 3},
    "object": {"response_format": {"type": "json_object"}},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}},
}
CHATS = ASKED | {
    "logprobs": {"logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}},
    "tools": {"tools": TOOLS},
    "calls": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 150},
    "a call in two answers": {
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "n": 2,
        "max_tokens": 150,
    },
}
COMPLETIONS = ASKED | {
    "logprobs": {"logprobs": 2},
    "echo": {"echo": True, "logprobs": 1},
    "prompts": {"prompt": ["the cat", "a hat"]},
    "no tokens": {"echo": True, "logprobs": 1, "max_tokens": 0},
}
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {"instructions": "say little"},
    "object": {"text": {"format": {"type": "json_object"}}},
    "schema": {"text": {"format": {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}}},
    "tools": {"tools": FLAT, "tool_choice": "auto", "metadata": {"a": "b"}, "user": "u"},
    "calls": {"tools": FLAT, "tool_choice": "required", "max_output_tokens": 150},
    "a call": {
        "tools": FLAT,
        "tool_choice": {"type": "function", "name": "get_weather"},
        "parallel_tool_calls": False,
        "max_output_tokens": 150,
    },
}


def ask(server: Server, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The reply, and the chunks of the stream of the same."""
    whole = server.post(path, **{key: value for key, value in body.items() if key != "stream_options"})
    assert whole.status_code == 200, whole.text
    return whole.json(), list(server.stream(path, **body))


@pytest.mark.parametrize("case", CHATS)
def test_chats(case: str, wide: Server) -> None:
    body = {"messages": ASK, "max_tokens": 60, "temperature": 0, "seed": 1, **CHATS[case]}
    whole, chunks = ask(wide, "/v1/chat/completions", body)
    check(ChatCompletion, whole)
    assert chunks.pop() == "[DONE]"
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)
    for choice in whole["choices"]:
        deltas = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert deltas[0]["delta"]["role"] == "assistant"
        assert "".join(d["delta"].get("content") or "" for d in deltas) == (choice["message"]["content"] or "")
        assert deltas[-1]["finish_reason"] == choice["finish_reason"]


@pytest.mark.parametrize("case", COMPLETIONS)
def test_completions(case: str, wide: Server) -> None:
    body = {"prompt": "the cat", "max_tokens": 12, "temperature": 0, "seed": 1, **COMPLETIONS[case]}
    whole, chunks = ask(wide, "/v1/completions", body)
    assert chunks.pop() == "[DONE]"
    for each in (whole, *chunks):
        for choice in each["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"  # the type is that of a whole one
            if choice["logprobs"] and choice["logprobs"]["token_logprobs"][:1] == [None]:  # as OpenAI's API has it
                choice["logprobs"] |= {"token_logprobs": [0.0], "top_logprobs": [{}]}
        check(Completion, each)


@pytest.mark.parametrize("case", RESPONSES)
def test_responses(case: str, wide: Server) -> None:
    body = {"input": "the weather in Rome", "max_output_tokens": 60, "temperature": 0, **RESPONSES[case]}
    whole, events = ask(wide, "/v1/responses", body)
    check(Response, whole)
    for event in events:
        check_event(event)
    last = events[-1]["response"]
    assert [shape(item) for item in last["output"]] == [shape(item) for item in whole["output"]]
    assert [e["item"] for e in events if e["type"] == "response.output_item.done"] == last["output"]
    for index, item in enumerate(last["output"]):
        mine = [event for event in events if event.get("output_index") == index]
        kind = "function_call_arguments" if item["type"] == "function_call" else "output_text"
        told = "".join(event["delta"] for event in mine if event["type"] == f"response.{kind}.delta")
        assert told == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        ends = mine[0]["type"], mine[-1]["type"]
        assert ends == ("response.output_item.added", "response.output_item.done")
    if "call" in case:
        assert {item["type"] for item in whole["output"]} == {"function_call"}
        assert json.loads(whole["output"][0]["arguments"])["city"] in ("Paris", "Rome")


def shape(item: dict[str, Any]) -> dict[str, Any]:
    """An item but for its ids."""
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


@pytest.mark.parametrize("given", ["the cat", ["the cat", "a hat"], [1, 2, 3], [[1, 2], [3]]])
def test_embeddings(given: Any, wide: Server) -> None:
    reply = wide.post("/v1/embeddings", input=given)
    assert reply.status_code == 200, reply.text
    check(CreateEmbeddingResponse, reply.json())


def test_models(wide: Server) -> None:
    listed = wide.client.get("/v1/models").json()
    assert listed["object"] == "list"
    for model in listed["data"]:
        check(Model, model)


def test_calls_and_their_results_are_read_as_in_a_chat(wide: Server) -> None:
    """The items of an earlier answer and the results stand where a chat has its messages: the prompt is the same."""
    call = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Rome"}'}
    second = {**call, "call_id": "call_2"}
    results = [{"type": "function_call_output", "call_id": f"call_{i}", "output": f"{i} degrees"} for i in (1, 2)]
    items = [*ASK, {**call, "id": "fc_1", "status": "completed"}, second, *results]
    reply = wide.post("/v1/responses", input=items, tools=FLAT, max_output_tokens=1)
    calls = [
        {"id": c["call_id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in (call, second)
    ]
    history = [*ASK, {"role": "assistant", "content": None, "tool_calls": calls}]
    history += [{"role": "tool", "tool_call_id": r["call_id"], "content": r["output"]} for r in results]
    chat = wide.post("/v1/chat/completions", messages=history, tools=TOOLS, max_tokens=1)
    assert reply.json()["usage"]["input_tokens"] == chat.json()["usage"]["prompt_tokens"] > 300


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0]", '"name": ...'),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "letters"),
        ({"tools": [{"type": "function", "name": "f", "description": "\ud800"}]}, "tools[0]", "surrogate"),
        ({"tools": FLAT, "tool_choice": {"type": "function", "name": "other"}}, "tool_choice", "not among"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        (
            {"tools": FLAT, "tool_choice": "required", "text": {"format": {"type": "json_object"}}},
            "tool_choice",
            "text",
        ),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input", "input[0].call_id"),
        ({"input": [{"type": "reasoning"}]}, "input", "function_call_output"),
        ({"text": {"format": {"type": "json_schema", "name": "\ud800", "schema": {}}}}, "text.format.name", "letters"),
        ({"metadata": {"a": 1}}, "metadata", "string"),
    ],
)
def test_tools_of_responses_that_are_refused(body: dict[str, Any], param: str, words: str, wide: Server) -> None:
    reply = wide.post("/v1/responses", **{"input": "x", **body})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param and words in reply.json()["error"]["message"]

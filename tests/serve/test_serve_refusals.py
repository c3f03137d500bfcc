"""What a server does not take: a clear 400 that names the field, and nobody else notices."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Server

from narrows.sampling import table

FIELDS = [f for f in table() if f.name not in ("detokenize", "prompt_logprobs")]
WRONG: dict[str, list[Any]] = {
    "number": ["1", True, [], {}, math.nan, math.inf, -math.inf, -1e9, 1e9, 10**400],
    "integer": ["1", True, [], {}, 0.5, math.nan, math.inf, -(10**400), 10**400],
    "boolean": ["true", 1, 0, [], {}],
    "list": ["1", 1, {}, ["a"], [-1], [None], [2**40], [0.5]],
    "object": ["1", 1, [], {"cat": 1}, {"-1": 1}, {"1": "x"}, {"1": math.nan}, {"1": 101}, {"191222": -100}],
    "string or list": [1, {}, [1], [""], "", ["x"] * 65, "x" * 1025],
}


def error(reply: Any) -> dict[str, Any]:
    """The error of a reply, which must be valid JSON in OpenAI's form."""
    content = json.loads(reply.text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert content.keys() == {"error"}
    assert content["error"].keys() == {"message", "type", "param", "code"}
    assert content["error"]["message"]
    return content["error"]


@pytest.mark.parametrize("name", [f.name for f in FIELDS])
def test_wrong_values_name_their_field(name: str, tiny: Server) -> None:
    """O5, O7: every sampling parameter, with values of wrong types and out of range."""
    kind = next(f.metadata["kind"] for f in FIELDS if f.name == name)
    for value in WRONG[kind]:
        reply = tiny.post("/v1/completions", **{"prompt": "x", "max_tokens": 2, name: value})
        assert reply.status_code == 400, (value, reply.text)
        assert error(reply)["param"] == name, value


def test_others_do_not_notice(tiny: Server) -> None:
    """O5, O7: a stream goes on while values that break samplers are refused; and so does the next request."""
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}
    want = tiny.complete("the cat", **given)["choices"][0]["text"]
    stream = tiny.stream("/v1/completions", prompt="the cat", **given)
    pieces = [next(stream)]
    for wrong in ({"temperature": math.nan}, {"logit_bias": {"191222": -100}}):
        assert tiny.post("/v1/completions", prompt="x", **wrong).status_code == 400
    pieces += [event for event in stream if event != "[DONE]"]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == want


def test_almost_no_temperature_is_greedy(tiny: Server) -> None:
    assert tiny.complete("the cat", temperature=1e-9)["choices"] == tiny.complete("the cat")["choices"]


def test_repetition_becomes_less_likely_and_a_penalty_of_one_is_none(tiny: Server) -> None:
    """O4."""
    given: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "logprobs": 1}
    plain = tiny.complete("the cat", **given)["choices"]
    assert tiny.complete("the cat", repetition_penalty=1.0, **given)["choices"] == plain
    [penalised] = tiny.complete("the cat", repetition_penalty=50.0, **given)["choices"]
    assert len(set(penalised["logprobs"]["tokens"])) > len(set(plain[0]["logprobs"]["tokens"]))


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "x", "temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"prompt": "x", "model": "other"}, "model", "does not exist"),
        ({"prompt": "x", "model": 1}, "model", "string"),
        ({"prompt": "x", "model": "\ud800"}, "model", "unicode"),
        ({"prompt": [], "model": "tiny"}, "prompt", "empty"),
        ({"prompt": [999999]}, "prompt", "999999"),
        ({"prompt": [[1], ["x"]]}, "prompt", ""),
        ({"prompt": None}, "prompt", ""),
        ({}, "prompt", "missing"),
        ({"prompt": "x", "suffix": "y"}, "suffix", "not supported"),
        ({"prompt": "x", "best_of": 3}, "best_of", "n"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"prompt": "x", "stream": True, "stream_options": {"usage": 1}}, "usage", "Unrecognized"),
        ({"prompt": "x", "stream": "yes"}, "stream", "bool"),
        ({"prompt": ["x"] * 100, "n": 100}, "n", "at most"),
        ({"prompt": "\ud800"}, "prompt", "surrogate"),
        ({"prompt": {}}, "prompt", "ids of its tokens"),
        ({"prompt": [1, "x"]}, "prompt", "ids of its tokens"),
        ({"prompt": [True]}, "prompt", "ids of its tokens"),
        ({"prompt": [[1], []]}, "prompt", "ids of its tokens"),
        ({"prompt": [10**400]}, "prompt", "token"),
        ({"prompt": "x", "response_format": {"type": "yaml"}}, "response_format", "json_schema"),
    ],
)
def test_completions_that_are_refused(body: dict[str, Any], param: str, words: str, tiny: Server) -> None:
    reply = tiny.post("/v1/completions", **body)
    assert reply.status_code == (404 if body.get("model") == "other" else 400), reply.text
    found = error(reply)
    assert found["param"] == param
    assert words in found["message"]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"messages": []}, "messages", "1 to"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"role": "user"}]}, "messages", "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "surrogate"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "text"),
        ({}, "messages", "missing"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs=true"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens is 0"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "messages", "bos_token"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "letters"),
    ],
)
def test_chats_that_are_refused(body: dict[str, Any], param: str, words: str, tiny: Server) -> None:
    default = {} if "messages" in body or not body else {"messages": [{"role": "user", "content": "hi"}]}
    reply = tiny.post("/v1/chat/completions", **default, **body)
    assert reply.status_code == 400, reply.text
    found = error(reply)
    assert found["param"] == param and words in found["message"]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "missing"),
        ({"input": []}, "input", "1 to"),
        ({"input": 5}, "input", "items"),
        ({"input": ["x"]}, "input", "items"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
        ({"input": "x", "temperature": math.nan}, "temperature", "nan"),
        ({"input": "x", "n": 2}, "n", "Unrecognized"),
        ({"input": [{"type": "function_call_output"}]}, "input", "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "text"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id", "not supported"),
        ({"input": "x", "truncation": "auto"}, "truncation", "not supported"),
        ({"input": "x", "text": {"format": {"type": "yaml"}}}, "text.format", "json_schema"),
        ({"input": "the cat " * 600}, "input", "512"),
    ],
)
def test_responses_that_are_refused(body: dict[str, Any], param: str, words: str, tiny: Server) -> None:
    reply = tiny.post("/v1/responses", **body)
    assert reply.status_code == 400, reply.text
    found = error(reply)
    assert found["param"] == param and words in found["message"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"prompt": ' + b"[" * 100_000, b'{"n": ' + b"1" * 10_000 + b"}"],
)
def test_bodies_that_are_no_objects(content: bytes, tiny: Server) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"):
        reply = tiny.client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert reply.status_code == 400, (path, reply.text)
        error(reply)


def test_paths_and_methods_that_are_not_there(tiny: Server) -> None:
    missing = tiny.client.get("/v2/none")
    assert (missing.status_code, error(missing)["type"]) == (404, "not_found_error")
    assert tiny.client.get("/v1/completions").status_code == 405
    error(tiny.client.delete("/v1/models"))


def test_texts_and_ids_go_back_and_forth(tiny: Server) -> None:
    text = "the cat — <|im_end|>"
    reply = tiny.post("/tokenize", prompt=text, parse_special=False, return_token_strs=True).json()
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"])
    assert reply["max_model_len"] == 512
    assert tiny.post("/detokenize", tokens=reply["tokens"]).json()["prompt"] == text
    assert len(tiny.post("/tokenize", prompt=text).json()["tokens"]) < reply["count"]
    assert error(tiny.post("/detokenize", tokens=[-1]))["param"] == "tokens"


@pytest.fixture(scope="module")
def odd(tiny_gguf: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two models: one whose tokenizer and template both put BOS in front, one whose template attacks."""
    template = "{{ bos_token }}{{ messages[0].content }}"
    double = tiny_gguf(metadata={"tokenizer.ggml.add_bos_token": True}, chat_template=template)
    hostile = tiny_gguf(
        chat_template="{% if messages[0].content == 'loop' %}{% for i in range(1000000000) %}{% endfor %}"
        "{% else %}{{ messages.__class__.__init__.__globals__ }}{% endif %}"
    )
    names = ("--served-model-name", "double", "--served-model-name", "hostile")
    server = Server(tmp_path_factory.mktemp("odd") / "log", double, hostile, *names, "--threads", "1")
    yield server.ready()
    server.close()


def test_one_bos_by_every_road(odd: Server) -> None:
    """O3."""
    model, messages = "double", [{"role": "user", "content": "the cat"}]
    by_chat = odd.post("/tokenize", model=model, messages=messages).json()["tokens"]
    rendered = odd.post("/tokenize", model=model, prompt="<|im_start|>the cat").json()["tokens"]
    raw = odd.post("/tokenize", model=model, prompt="the cat").json()["tokens"]
    assert by_chat == rendered == raw and raw.count(raw[0]) == 1
    assert odd.complete("the cat", model=model, max_tokens=1)["usage"]["prompt_tokens"] == len(raw)
    reply = odd.post("/v1/chat/completions", model=model, messages=messages, max_tokens=1).json()
    assert reply["usage"]["prompt_tokens"] == len(raw)


def test_templates_that_attack_fail_alone(odd: Server) -> None:
    """O15: one reaches for the host's objects, one loops; the server says so and goes on."""
    for path in ("/v1/chat/completions", "/tokenize"):
        for content in ("loop", "reach"):
            reply = odd.post(path, model="hostile", messages=[{"role": "user", "content": content}])
            assert reply.status_code == 400 and "template" in error(reply)["message"]
    assert odd.client.get("/livez").status_code == 200
    assert odd.complete("the cat", model="hostile")["choices"]

"""POST /v1/embeddings: OpenAI's bodies, the vectors of `LLM.embed`, and clear refusals."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from servers import Server, wait

from narrows import LLM

TEXTS = ["the cat sat on the mat", "x", "in the house " * 30]


@pytest.fixture(scope="module")
def offline(tiny_path: Path) -> LLM:
    return LLM(tiny_path, num_threads=1, cache=False)


def embed(server: Server, value: Any, **body: Any) -> np.ndarray:
    reply = server.post("/v1/embeddings", input=value, **body)
    assert reply.status_code == 200, reply.text
    content = reply.json()
    assert [item["index"] for item in content["data"]] == list(range(len(content["data"])))
    return np.array([item["embedding"] for item in content["data"]], np.float32)


def test_every_kind_of_input_gives_the_offline_vectors(tiny: Server, offline: LLM) -> None:
    want = offline.embed(TEXTS)
    ids = [offline.tokenizer.encode(text) for text in TEXTS]
    assert np.array_equal(embed(tiny, TEXTS), want)
    assert np.array_equal(embed(tiny, TEXTS[0]), want[:1])
    assert np.array_equal(embed(tiny, ids), want)
    assert np.array_equal(embed(tiny, ids[2]), want[2:])


def test_the_openai_client_embeds(tiny: Server, offline: LLM) -> None:
    """It asks for base64 and decodes it, unless told."""
    client = openai.OpenAI(base_url=f"{tiny.url}/v1", api_key="first-key", max_retries=0)
    want = offline.embed(TEXTS)
    for options in ({}, {"encoding_format": "float"}, {"dimensions": 64, "user": "me"}):
        reply = client.embeddings.create(model="tiny", input=TEXTS, **options)  # type: ignore[arg-type]
        assert np.array_equal(np.array([item.embedding for item in reply.data], np.float32), want)
        assert (reply.model, reply.object, reply.data[0].object) == ("tiny", "list", "embedding")
        num_tokens = sum(len(offline.tokenizer.encode(text)) for text in TEXTS)
        assert reply.usage.prompt_tokens == reply.usage.total_tokens == num_tokens


def test_base64_is_little_endian_float32(tiny: Server, offline: LLM) -> None:
    reply = tiny.post("/v1/embeddings", input="x", encoding_format="base64").json()
    got = np.frombuffer(base64.b64decode(reply["data"][0]["embedding"]), "<f4")
    assert np.array_equal(got, offline.embed("x")[0])


def test_answers_go_on_beside_embeddings(tiny: Server, offline: LLM) -> None:
    given = {"temperature": 0, "max_tokens": 80, "ignore_eos": True}
    want = tiny.complete("the cat", **given)["choices"][0]["text"]
    stream = tiny.stream("/v1/completions", prompt="the cat", **given)
    events = [next(stream)]
    assert np.array_equal(embed(tiny, TEXTS), offline.embed(TEXTS))
    events += [event for event in stream if event != "[DONE]"]
    assert "".join(event["choices"][0]["text"] for event in events) == want
    wait(tiny.quiet)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", None),
        ({"input": []}, "input", None),
        ({"input": ""}, "input", None),
        ({"input": ["x", ""]}, "input", None),
        ({"input": [[]]}, "input", None),
        ({"input": [["x"]]}, "input", None),
        ({"input": [5, "x"]}, "input", None),
        ({"input": [10**9]}, "input", None),
        ({"input": [-1]}, "input", None),
        ({"input": {"text": "x"}}, "input", None),
        ({"input": "the cat " * 2000}, "input", "context_length_exceeded"),
        ({"input": ["x"] * 2049}, "input", None),
        ({"input": "x", "dimensions": 32}, "dimensions", "unsupported_parameter"),
        ({"input": "x", "dimensions": 0}, "dimensions", None),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format", None),
        ({"input": "x", "temperature": 1}, "temperature", "unknown_parameter"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], param: str, code: str | None, tiny: Server) -> None:
    reply = tiny.post("/v1/embeddings", **body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (param, code), error

"""Log-probabilities, echo and text offsets, whole and streamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from servers import Server

from narrows import LLM, SamplingParams

PROMPT = "the cat — in the hat"


@pytest.fixture(scope="module")
def offline(tiny_path: Path) -> LLM:
    return LLM(tiny_path, num_threads=1, cache=False)


@pytest.mark.parametrize("max_tokens", [0, 1, 12])
def test_echo_gives_the_prompts_logprobs(max_tokens: int, tiny: Server, offline: LLM) -> None:
    """As evaluation harnesses ask for them, with no token to produce."""
    given: dict[str, Any] = {"temperature": 0, "logprobs": 1, "ignore_eos": True}
    [want] = offline.generate(PROMPT, SamplingParams(**given, max_tokens=max(1, max_tokens), prompt_logprobs=1))
    reply = tiny.complete(PROMPT, max_tokens=max_tokens, echo=True, **given)
    [choice] = reply["choices"]
    answer = want.outputs[0]
    assert answer.logprobs is not None and want.prompt_logprobs is not None
    expected = [*want.prompt_logprobs, *answer.logprobs[:max_tokens]]
    assert choice["logprobs"]["token_logprobs"] == [t and t.logprob for t in expected]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["text"] == PROMPT + (answer.text if max_tokens else "")
    assert reply["usage"]["completion_tokens"] == max_tokens
    assert choice["finish_reason"] == "length"


def test_offsets_point_at_the_text_of_tokens(tiny: Server) -> None:
    [choice] = tiny.complete("the cat in the hat", max_tokens=1, echo=True, logprobs=0)["choices"]
    tokens, offsets = choice["logprobs"]["tokens"][:-1], choice["logprobs"]["text_offset"]
    assert len(tokens) > 5
    for token, offset in zip(tokens, offsets, strict=False):
        assert choice["text"][offset:].startswith(token)


@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_has_the_logprobs_of_the_whole(echo: bool, tiny: Server) -> None:
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "logprobs": 2, "echo": echo, "ignore_eos": True}
    [whole] = tiny.complete([PROMPT], **given)["choices"]
    *chunks, _ = tiny.stream("/v1/completions", prompt=[PROMPT], **given)
    parts = [chunk["choices"][0] for chunk in chunks]
    assert "".join(part["text"] for part in parts) == whole["text"]
    for key, value in whole["logprobs"].items():
        assert [item for part in parts for item in part["logprobs"][key]] == value
        assert len(value) == 16 + echo * len(tiny.post("/tokenize", prompt=PROMPT).json()["tokens"])


def test_chat_logprobs_spell_the_answer(tiny: Server) -> None:
    given: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "temperature": 0}
    given |= {"logprobs": True, "top_logprobs": 3, "ignore_eos": True}
    [choice] = tiny.post("/v1/chat/completions", **given).json()["choices"]
    entries = choice["logprobs"]["content"]
    spelled = bytes(byte for entry in entries for byte in entry["bytes"]).decode(errors="replace")
    assert spelled == choice["message"]["content"] and len(entries) == 12
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    assert all(entry["logprob"] == entry["top_logprobs"][0]["logprob"] for entry in entries)
    *chunks, _ = tiny.stream("/v1/chat/completions", **given)
    streamed = [e for c in chunks for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == entries


def test_cut_characters_stream_whole(tiny: Server) -> None:
    """O1: a model of bytes that babbles; pieces joined are the whole text, and no piece breaks a character."""
    for seed in range(6):
        given: dict[str, Any] = {"temperature": 2, "seed": seed, "max_tokens": 40, "ignore_eos": True}
        [whole] = tiny.complete("the cat", **given)["choices"]
        *chunks, _ = tiny.stream("/v1/completions", prompt="the cat", **given)
        pieces = [chunk["choices"][0]["text"] for chunk in chunks]
        assert "".join(pieces) == whole["text"]
        assert len(pieces) > 5

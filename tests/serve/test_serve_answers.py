"""What comes back over HTTP is what the model says in process, in OpenAI's form."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from servers import Server

from narrows import LLM, SamplingParams

CHAT = [{"role": "user", "content": "Which letters come after A, B and C?"}]
PROMPTS = ["The capital of France is", "Once upon a time", "Here is the English alphabet: ABC", "Water boils at"]


@pytest.fixture(scope="module")
def offline(smollm2_path: Path) -> LLM:
    return LLM(smollm2_path, num_threads=2, max_model_len=1024)


@pytest.fixture(scope="module")
def client(smol: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smol.url}/v1", api_key="none", max_retries=0)


def test_greedy_text_is_the_offline_text_alone_and_batched(smol: Server, offline: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=10)
    want = [out.outputs[0].text for out in offline.generate(PROMPTS, params)]
    alone = [smol.complete(prompt, max_tokens=10)["choices"][0]["text"] for prompt in PROMPTS]
    together = smol.complete(PROMPTS, max_tokens=10)["choices"]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        parallel = list(pool.map(lambda p: smol.complete(p, max_tokens=10)["choices"][0]["text"], PROMPTS))
    assert alone == want
    assert [choice["text"] for choice in together] == want
    assert [choice["index"] for choice in together] == [0, 1, 2, 3]
    assert parallel == want


def test_seeded_answers_are_the_offline_answers(smol: Server, offline: LLM) -> None:
    given: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": 7, "n": 3, "max_tokens": 8}
    want = [o.text for o in offline.generate(PROMPTS[1], SamplingParams(**given))[0].outputs]
    assert [c["text"] for c in smol.complete(PROMPTS[1], **given)["choices"]] == want
    assert len(set(want)) > 1


def test_token_ids_are_a_prompt_too(smol: Server, offline: LLM) -> None:
    ids = [offline.tokenizer.encode(prompt) for prompt in PROMPTS[:2]]
    texts = [c["text"] for c in smol.complete(PROMPTS[:2])["choices"]]
    assert [c["text"] for c in smol.complete(ids)["choices"]] == texts
    assert smol.complete(ids[0])["choices"][0]["text"] == texts[0]


def test_the_openai_client_chats_and_streams(client: openai.OpenAI, offline: LLM) -> None:
    want = offline.chat(CHAT, SamplingParams(temperature=0, max_tokens=12))[0]
    given: dict[str, Any] = {"model": "smollm2", "messages": CHAT, "temperature": 0, "max_completion_tokens": 12}
    whole = client.chat.completions.create(**given)
    assert whole.choices[0].message.content == want.outputs[0].text
    assert whole.choices[0].finish_reason == want.outputs[0].finish_reason
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(want.prompt_token_ids), 12)
    chunks = list(client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == want.outputs[0].text
    assert chunks[-1].usage == whole.usage
    assert chunks[0].choices[0].delta.role == "assistant"


def test_the_openai_client_completes_and_lists(client: openai.OpenAI, smol: Server) -> None:
    want = smol.complete(PROMPTS[0])["choices"][0]["text"]
    given: dict[str, Any] = {"model": "smollm2", "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 8}
    assert client.completions.create(**given).choices[0].text == want
    assert "".join(c.choices[0].text for c in client.completions.create(**given, stream=True)) == want
    assert [m.id for m in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").id == "smollm2"
    with pytest.raises(openai.NotFoundError, match="smollm3"):
        client.models.retrieve("smollm3")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(**given | {"temperature": -1})


def test_the_openai_client_gets_responses(client: openai.OpenAI, offline: LLM) -> None:
    messages = [{"role": "system", "content": "Answer briefly."}, *CHAT]
    want = offline.chat(messages, SamplingParams(temperature=0, max_tokens=12))[0]
    items: Any = [{"role": "user", "content": [{"type": "input_text", "text": CHAT[0]["content"]}]}]
    given: dict[str, Any] = {"model": "smollm2", "instructions": "Answer briefly.", "temperature": 0}
    whole = client.responses.create(**given, input=items, max_output_tokens=12)
    assert whole.output_text == want.outputs[0].text
    assert whole.usage is not None
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (len(want.prompt_token_ids), 12)
    assert whole.status == "incomplete" and whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"

    events = list(client.responses.create(**given, input=CHAT[0]["content"], max_output_tokens=12, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == whole.output_text


@pytest.mark.parametrize("asked", [False, True])
def test_usage_comes_with_a_stream_when_asked_for(asked: bool, smol: Server) -> None:
    """O8: exactly one chunk without choices, after the one with the reason and before the end; else none."""
    given: dict[str, Any] = {"messages": CHAT, "temperature": 0, "max_tokens": 5}
    usage = smol.post("/v1/chat/completions", **given).json()["usage"]
    options = {"stream_options": {"include_usage": True}} if asked else {}
    *chunks, done = smol.stream("/v1/chat/completions", **given, **options)
    assert done == "[DONE]"
    empty = [i for i, chunk in enumerate(chunks) if not chunk["choices"]]
    reasons = [i for i, chunk in enumerate(chunks) if chunk["choices"] and chunk["choices"][0]["finish_reason"]]
    if asked:
        assert empty == [len(chunks) - 1] and reasons == [len(chunks) - 2]
        assert chunks[-1]["usage"] == usage
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert not empty and reasons == [len(chunks) - 1]
        assert not any("usage" in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_no_character_of_a_stop_is_sent(smol: Server) -> None:
    """O2, for chats and completions."""
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
    text = smol.complete(PROMPTS[2], **given)["choices"][0]["text"]
    *chunks, _ = smol.stream("/v1/completions", prompt=PROMPTS[2], stop="DEFGHIJ", **given)
    assert "DEFGHIJ" in text
    assert "".join(c["choices"][0]["text"] for c in chunks) == text[: text.index("DEFGHIJ")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"][0]["stop_reason"] == "DEFGHIJ"

    text = smol.post("/v1/chat/completions", messages=CHAT, **given).json()["choices"][0]["message"]["content"]
    *chunks, _ = smol.stream("/v1/chat/completions", messages=CHAT, stop=[text[3:10]], **given)
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert said == text[: text.index(text[3:10])]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_answers_hold_no_other_prompts_words(smol: Server) -> None:
    """O13: eight at once behind a shared beginning, each with a word of its own; then one by one."""
    shared = "The clerk keeps a list of visitors, and repeats every pass word exactly as it was told. " * 3
    words = [f"{a}{b}" for a in ("zeb", "mok") for b in "aeio"]
    prompts = [f"{shared}The visitor said: the word is {w}, {w}, {w}. The clerk repeated: the word is" for w in words]

    def ask(prompt: str) -> str:
        return smol.complete(prompt, max_tokens=5)["choices"][0]["text"]

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, prompts))
    assert together == [ask(prompt) for prompt in prompts]
    assert sum(word in text for word, text in zip(words, together, strict=True)) >= 6
    for word, text in zip(words, together, strict=True):
        assert not [other for other in words if other != word and other in text]


def test_a_prompt_of_five_windows_is_refused_with_its_length(smol: Server, offline: LLM) -> None:
    """O10."""
    prompt = "The code is 4711. " + "Nothing happened that day. " * 1100 + "What is the code?"
    error = smol.post("/v1/completions", prompt=prompt).json()["error"]
    assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    assert str(len(offline.tokenizer.encode(prompt))) in error["message"] and "1024" in error["message"]
    chat = smol.post("/v1/chat/completions", messages=[{"role": "user", "content": prompt}])
    assert (chat.status_code, chat.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_more_tokens_than_fit_end_with_length(tiny: Server) -> None:
    reply = tiny.complete("the cat " * 40, max_tokens=100_000, ignore_eos=True)
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == 512

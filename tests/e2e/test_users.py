"""What went wrong for users of other engines, end to end."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from narrows import LLM, SamplingParams
from narrows.engine import ContextLengthError
from narrows.native import PAGE_SIZE
from narrows.sampling import ParamError

GREEDY = SamplingParams(temperature=0, max_tokens=24)
SHORT = SamplingParams(temperature=0, max_tokens=8)


def test_pieces_of_characters_stream_as_the_whole_text(tiny: LLM) -> None:
    """A model of bytes that babbles: most of its characters are cut, many are invalid, the last may be unfinished."""
    for seed in range(12):
        params = SamplingParams(temperature=2, seed=seed, max_tokens=40, ignore_eos=True)
        stream = tiny.stream("the cat", params)
        pieces = list(stream)
        answer = stream.output.outputs[0]
        assert "".join(pieces) == answer.text == tiny.tokenizer.decode(answer.token_ids, True)
        assert len(pieces) > 5


def test_no_character_of_a_stop_is_sent(llm: LLM) -> None:
    chat = [{"role": "user", "content": "Which letters come after A, B and C?"}]
    for prompt in ("Here is the English alphabet: ABC", chat):
        plain = "".join(llm.stream(prompt, GREEDY))
        stop = plain[2:9] if prompt is chat else "DEFGHIJ"
        stream = llm.stream(prompt, SamplingParams(temperature=0, max_tokens=24, stop=stop))
        assert "".join(stream) == plain[: plain.index(stop)]
        assert stream.output.outputs[0].finish_reason == "stop"


def test_one_bos_by_every_road(tiny_gguf: Callable[..., Path]) -> None:
    template = "{{ bos_token }}{{ messages[0].content }}"
    path = tiny_gguf(metadata={"tokenizer.ggml.add_bos_token": True}, chat_template=template)
    model = LLM(path, num_threads=1, cache=False)
    params = SamplingParams(max_tokens=1)
    message = [{"role": "user", "content": "the cat"}]
    by_chat = model.chat(message, params)[0].prompt_token_ids
    rendered = model.generate(model.chat_template.render(message), params)[0].prompt_token_ids
    raw = model.generate("the cat", params)[0].prompt_token_ids
    bos = model.tokenizer.bos_id
    assert by_chat == rendered == raw and raw[0] == bos and raw.count(bos) == 1


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -3.0])
def test_numbers_that_break_samplers_are_refused(name: str, value: float, tiny: LLM) -> None:
    """Others in the batch do not notice, and the reply that says so can be written as JSON."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    [want] = tiny.generate("the cat", params)
    stream = tiny.stream("the cat", params)
    first = next(stream)
    with pytest.raises(ParamError, match=name) as error:
        tiny.generate("x", SamplingParams(**{name: value}))  # type: ignore[arg-type]
    assert name in json.dumps({"error": str(error.value)}, allow_nan=False)
    assert first + "".join(stream) == want.outputs[0].text


def test_biases_that_break_samplers_are_refused(tiny: LLM) -> None:
    for bias, key in (({"191222": -100}, "191222"), ({"cat": 1}, "cat")):
        with pytest.raises(ParamError, match=key):
            tiny.generate("x", SamplingParams(logit_bias=bias))  # type: ignore[arg-type]
    assert tiny.generate("x", SamplingParams(logit_bias={"5": -100}, max_tokens=2))[0].finished  # type: ignore[arg-type]


def test_a_prompt_of_five_windows_is_refused_with_its_length(llm: LLM) -> None:
    prompt = "The code is 4711. " + "Nothing happened that day. " * 1100 + "What is the code?"
    length = len(llm.tokenizer.encode(prompt))
    assert length > 5 * llm.max_model_len
    with pytest.raises(ContextLengthError) as error:
        llm.generate(prompt, GREEDY)
    assert str(length) in str(error.value) and str(llm.max_model_len) in str(error.value)


def test_answers_hold_no_other_prompts_words(llm: LLM) -> None:
    """Sixteen at once on shared pages, each with a word of its own to repeat; then one by one."""
    shared = "The clerk keeps a list of visitors, and repeats every pass word exactly as it was told. " * 8
    words = [f"{a}{b}{i}" for i, (a, b) in enumerate((a, b) for a in ("zeb", "mok", "tir", "vul") for b in "aeio")]
    prompts = [f"{shared}The visitor said: the word is {w}, {w}, {w}. The clerk repeated: the word is" for w in words]
    llm.generate(shared, SamplingParams(max_tokens=1))  # now in the prefix cache
    cached = llm.ledger.num_cached
    together = [out.outputs[0].text for out in llm.generate(prompts, SHORT)]
    assert llm.ledger.num_cached - cached >= 16 * 2 * PAGE_SIZE
    assert together == [llm.generate(prompt, SHORT)[0].outputs[0].text for prompt in prompts]
    assert sum(word in text for word, text in zip(words, together, strict=True)) >= 12
    for word, text in zip(words, together, strict=True):
        assert not [other for other in words if other != word and re.search(rf"\b{other}\b", text)]

"""The Python interface on the default model, and on a tiny one for what needs no sense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from narrows import LLM, SamplingParams
from narrows.engine import ContextLengthError, RequestError
from narrows.ledger import summary
from narrows.sampling import ParamError

FRANCE = "The capital of France is"
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def text(llm: LLM, prompt: str, **options: object) -> str:
    params = SamplingParams(**({"temperature": 0, "max_tokens": 12} | options))  # type: ignore[arg-type]
    return llm.generate(prompt, params)[0].outputs[0].text


def test_greedy_text_makes_sense(llm: LLM) -> None:
    [out] = llm.generate(FRANCE, GREEDY)
    answer = out.outputs[0]
    assert answer.text.startswith(" Paris")
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 12)
    assert llm.tokenizer.decode(answer.token_ids) == answer.text
    assert out.prompt == FRANCE and llm.tokenizer.decode(out.prompt_token_ids) == FRANCE
    assert out.finished


def test_chat_ends_by_itself(llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is 2 + 2? Answer with one number."}]
    [out] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=100))
    assert out.outputs[0].finish_reason == "stop"
    assert "4" in out.outputs[0].text
    assert "<|im_end|>" not in out.outputs[0].text
    assert out.outputs[0].token_ids[-1] in llm.tokenizer.eos_ids
    assert [
        o.outputs[0].text for o in llm.chat([messages, messages], SamplingParams(temperature=0, max_tokens=100))
    ] == [out.outputs[0].text] * 2


def test_stream_is_the_text_in_pieces_and_streams_take_turns(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=20)
    whole = [out.outputs[0].text for out in llm.generate([FRANCE, "Water boils at"], params)]
    streams = [llm.stream(FRANCE, params), llm.stream("Water boils at", params)]
    pieces: list[list[str]] = [[], []]
    for _ in range(40):
        for stream, found in zip(streams, pieces, strict=True):
            found += [piece for piece in [next(stream, "")] if piece]
    assert ["".join(found) for found in pieces] == whole
    assert len(pieces[0]) > 10
    assert streams[0].output.finished


def test_stream_closed_early_frees_its_pages(llm: LLM) -> None:
    with llm.stream(FRANCE, SamplingParams(temperature=0, max_tokens=500)) as stream:
        next(stream)
        assert llm.engine.requests
    assert not llm.engine.requests
    assert stream.output.outputs[0].finish_reason == "abort"
    llm.engine.check()
    assert llm.engine.pool.num_free == llm.engine.pool.num_pages


def test_seeds_give_the_same_answer_in_any_company(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=42, max_tokens=12)
    first = text(llm, FRANCE, temperature=1, seed=42)
    others = [SamplingParams(temperature=1, max_tokens=12) for _ in range(3)]
    crowd = llm.generate(["One", "Two", FRANCE, "Three"], [others[0], others[1], params, others[2]])
    assert crowd[2].outputs[0].text == first
    assert text(llm, FRANCE, temperature=1, seed=43) != first


def test_n_answers(llm: LLM) -> None:
    [out] = llm.generate(FRANCE, SamplingParams(n=2, seed=5, max_tokens=12, temperature=1))
    assert [o.index for o in out.outputs] == [0, 1]
    assert out.outputs[0].text != out.outputs[1].text
    assert out.outputs[0].text == text(llm, FRANCE, seed=5, temperature=1)


def test_stop_strings(llm: LLM) -> None:
    plain = text(llm, FRANCE, max_tokens=30)
    stop = plain[9:14]
    cut = plain[: plain.index(stop)]
    [out] = llm.generate(FRANCE, SamplingParams(temperature=0, max_tokens=30, stop=["never there", stop]))
    answer = out.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == (cut, "stop", stop)
    assert len(answer.token_ids) < 30
    assert text(llm, FRANCE, max_tokens=30, stop=stop, include_stop_str_in_output=True) == cut + stop
    assert "".join(llm.stream(FRANCE, SamplingParams(temperature=0, max_tokens=30, stop=stop))) == cut
    assert not llm.engine.requests


def test_stop_tokens_and_min_tokens(llm: LLM) -> None:
    ids = llm.generate(FRANCE, GREEDY)[0].outputs[0].token_ids
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[ids[1]])
    answer = llm.generate(FRANCE, params)[0].outputs[0]
    assert (answer.token_ids, answer.stop_reason) == (ids[:2], ids[1])
    assert answer.text == llm.tokenizer.decode(ids[:1])
    messages = [{"role": "user", "content": "Say hi."}]
    ends = llm.tokenizer.eos_ids
    short = llm.chat(messages, SamplingParams(temperature=0, max_tokens=60))[0].outputs[0]
    long = llm.chat(messages, SamplingParams(temperature=0, max_tokens=60, min_tokens=50))[0].outputs[0]
    assert len(short.token_ids) < 50 <= len(long.token_ids)
    assert ends.isdisjoint(long.token_ids[:50])


def test_logprobs_agree_with_the_choice(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=1)
    [out] = llm.generate(FRANCE, params)
    answer = out.outputs[0]
    assert answer.logprobs is not None and out.prompt_logprobs is not None
    assert [p.token for p in answer.logprobs] == answer.token_ids
    for p in answer.logprobs:
        assert p.rank == 1 and p.top[0] == (p.token, p.logprob) and len(p.top) == 3
        assert sum(np.exp([value for _, value in p.top])) <= 1 + 1e-6
    assert out.prompt_logprobs[0] is None
    assert [p.token for p in out.prompt_logprobs[1:] if p] == out.prompt_token_ids[1:]
    # Scoring the answer as part of a prompt gives the log-probabilities it was generated with.
    whole = out.prompt_token_ids + answer.token_ids
    [scored] = llm.generate([whole], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
    assert scored.prompt_logprobs is not None
    tail = [p.logprob for p in scored.prompt_logprobs[-6:] if p]
    assert tail == [p.logprob for p in answer.logprobs]


def test_penalties_bias_and_temperature_change_the_text(llm: LLM) -> None:
    plain = text(llm, "la la la la la la")
    assert text(llm, "la la la la la la", repetition_penalty=1.0) == plain
    assert text(llm, "la la la la la la", repetition_penalty=1.8) != plain
    token = llm.tokenizer.encode(" London")[0]
    assert text(llm, FRANCE, logit_bias={token: 100}, max_tokens=1) == " London"
    assert text(llm, FRANCE, temperature=1e-9) == text(llm, FRANCE)


def test_figures_of_an_answer(llm: LLM) -> None:
    [out] = llm.generate(FRANCE, GREEDY)
    figures = out.metrics.json(bandwidth=20.0)
    assert figures["output_tokens"] == 12 and figures["ttft_seconds"] > 0
    assert figures["weight_bytes_per_token"] == pytest.approx(llm.loaded.path.stat().st_size, rel=0.1)
    assert 0 < figures["kv_bytes_per_token"] < 40 * llm.loaded.model.kv_bytes_per_token
    assert 0 < figures["bandwidth_share"] < 3
    assert "tokens/s" in summary(out.metrics, 20.0) and "bound" in summary(out.metrics, 20.0)


def test_prompts_that_are_refused_harm_nobody(tiny: LLM) -> None:
    limit = tiny.max_model_len
    with pytest.raises(ContextLengthError, match=f"the context is {limit} tokens") as error:
        tiny.generate(["fine", "a " * 5 * limit], GREEDY)
    assert error.value.num_tokens >= 5 * limit
    with pytest.raises(RequestError, match="vocabulary"):
        tiny.generate([[1, 10**6]], GREEDY)
    with pytest.raises(ParamError, match="logit_bias"):
        tiny.generate("x", SamplingParams(logit_bias={191222: -100}))
    with pytest.raises(ParamError, match="n is 2; a stream gives one answer"):
        tiny.stream("x", SamplingParams(n=2))
    with pytest.raises(ValueError, match="2 prompts but 1 sampling parameters"):
        tiny.generate(["a", "b"], [GREEDY])
    assert not tiny.engine.requests
    assert len(tiny.generate("fine", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids) == 3


def test_kinds_of_prompts(tiny: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    ids = tiny.tokenizer.encode("the cat")
    by_text, by_ids = tiny.generate("the cat", params), tiny.generate(ids, params)
    assert by_text[0].outputs[0].token_ids == by_ids[0].outputs[0].token_ids
    assert len(tiny.generate(["the cat", ids, "b"], params)) == 3
    assert tiny.generate([], params) == []
    [empty] = tiny.generate("", params)
    assert empty.prompt_token_ids == [tiny.tokenizer.bos_id]


def test_tokens_without_text(tiny: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
    answer = tiny.generate("the cat", params)[0].outputs[0]
    assert (answer.text, len(answer.token_ids)) == ("", 4)
    assert list(tiny.stream("the cat", params)) == []


def test_sizes_are_checked(tiny_path: Path) -> None:
    with pytest.raises(ValueError, match="num_threads is 0"):
        LLM(tiny_path, num_threads=0, cache=False)
    with pytest.raises(ValueError, match="kv_cache_bytes is 10; one sequence takes"):
        LLM(tiny_path, kv_cache_bytes=10, cache=False)
    small = LLM(tiny_path, kv_cache_bytes=1 << 14, num_threads=1, cache=False)
    assert small.max_model_len == 64
    with pytest.raises(ValueError, match=r"max_model_len is .* GB of KV cache"):
        LLM(tiny_path, max_model_len=1 << 40, cache=False)

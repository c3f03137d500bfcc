"""Constrained answers of a real model: alone, in a batch, with other requests, and preempted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from random_schemas import SCHEMAS, fits

from narrows import LLM, SamplingParams
from narrows.native import PAGE_SIZE
from narrows.text.tools import ToolUse

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS: list[dict[str, Any]] = [{"json": PERSON}, {"regex": r"\d{4}-\d{2}-\d{2}"}, {"choice": ["red", "green", "no"]}]


def params(form: dict[str, Any] | None, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 48, "structured_outputs": form} | changes)


def test_answers_have_the_form_and_end_with_it(llm: LLM) -> None:
    chat = [{"role": "user", "content": "Bob is 31 years old. Describe him."}]
    person, date, color = (llm.chat(chat, params(form, logprobs=2))[0].outputs[0] for form in FORMS)
    assert {"name", "age"} == json.loads(person.text).keys()
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", date.text)
    assert color.text in FORMS[2]["choice"]
    for answer in (person, date, color):
        assert answer.finish_reason == "stop"
        assert not llm.tokenizer.eos_ids & set(answer.token_ids)
        assert [each.token for each in answer.logprobs or []] == answer.token_ids
    assert max(each.rank for each in date.logprobs or []) > 1  # raw: the mask is not in them


def test_an_answer_that_may_go_on_ends_when_the_model_ends_it(llm: LLM) -> None:
    end = min(llm.tokenizer.eos_ids)
    out = llm.generate("One two", params({"regex": "[a-z ]+"}, logit_bias={end: 100}, min_tokens=3))[0].outputs[0]
    assert out.finish_reason == "stop"
    assert out.token_ids[-1] in llm.tokenizer.eos_ids and len(out.token_ids) == 4
    assert re.fullmatch("[a-z ]+", out.text)


def test_min_tokens_and_ignored_ends_do_not_outlast_the_form(llm: LLM) -> None:
    out = llm.generate("One", params({"choice": ["ab"]}, min_tokens=40, ignore_eos=True))[0].outputs[0]
    assert (out.text, out.finish_reason) == ("ab", "stop")


def test_a_cut_answer_says_so(llm: LLM) -> None:
    out = llm.generate("One", params({"json": PERSON}, max_tokens=3))[0].outputs[0]
    assert out.finish_reason == "length"


def test_the_row_law_holds_with_forms(llm: LLM, smollm2_path: Path) -> None:
    forms = [*FORMS, None, {"json": {"type": "object"}}, None]
    each = [params(form, max_tokens=12, temperature=i % 2, seed=i) for i, form in enumerate(forms)]
    prompts = [f"Tell me about number {i}. " * 4 for i in range(len(forms))]
    alone = [llm.generate(prompt, p)[0].outputs[0].token_ids for prompt, p in zip(prompts, each, strict=True)]
    assert [out.outputs[0].token_ids for out in llm.generate(prompts, each)] == alone
    page = llm.loaded.model.kv_bytes_per_token * PAGE_SIZE
    tight = LLM(smollm2_path, num_threads=1, max_model_len=128, kv_cache_bytes=3 * page)
    longer = ["word " * 32 + prompt for prompt in prompts]
    expected = [llm.generate(prompt, p)[0].outputs[0].token_ids for prompt, p in zip(longer, each, strict=True)]
    assert [out.outputs[0].token_ids for out in tight.generate(longer, each)] == expected
    assert tight.ledger.num_preemptions > 0


def test_answers_of_one_request_are_constrained_each(llm: LLM) -> None:
    out = llm.generate("A word:", params({"regex": "[a-z]{3}"}, n=4, temperature=1, seed=1))[0]
    assert all(re.fullmatch("[a-z]{3}", answer.text) for answer in out.outputs)
    assert len({answer.text for answer in out.outputs}) > 1


def test_a_required_tool_is_called(llm: LLM) -> None:
    properties = {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}
    parameters = {"type": "object", "properties": properties, "required": ["city"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    use = ToolUse.of(tools, "required", False, llm.chat_template.source)
    messages = use.messages([{"role": "user", "content": "What is the weather in Paris?"}])
    out = llm.chat(messages, params(use.structured_outputs, max_tokens=80), **use.variables)[0].outputs[0]
    (call,) = use.message(out.text)["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert "city" in json.loads(call["function"]["arguments"])


def schemas(count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    @seed(7)
    @given(SCHEMAS)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    def collect(schema: dict[str, Any]) -> None:
        found.append(schema)

    collect()
    return found


def check(llm: LLM, count: int) -> None:
    chosen = schemas(count)
    prompt = "Answer in JSON:\n"
    each = [params({"json": schema}, temperature=1, seed=i, max_tokens=64) for i, schema in enumerate(chosen)]
    outputs = [out.outputs[0] for out in llm.generate([prompt] * len(chosen), each)]
    done = [(out, schema) for out, schema in zip(outputs, chosen, strict=True) if out.finish_reason == "stop"]
    assert len(done) > 0.8 * len(chosen)
    assert all(out.finish_reason in ("stop", "length") for out in outputs)
    for out, schema in done:
        assert fits(json.loads(out.text), schema), (out.text, schema)


def test_random_schemas(llm: LLM) -> None:
    check(llm, 24)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_hundreds_of_random_schemas(llm: LLM) -> None:
    check(llm, 400)

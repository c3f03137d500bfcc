"""Tools of a request: what is refused, what the model is shown, and the form of a call that is required."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import CHAT_TEMPLATE

from narrows.checkpoints import open_checkpoint
from narrows.constrain.guidance import Guidance
from narrows.sampling import ParamError, SamplingParams
from narrows.text import ChatTemplate, Tokenizer, load_tokenizer
from narrows.text.tools import ToolUse

HERMES = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}<tool_call>{{ messages[0].content }}"
LLAMA3 = '{{ tools }}{"name": function name, "parameters": ...}'
ITEM = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}, "next": {"$ref": "#/$defs/Item"}}}
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Item"}},
    "$defs": {"Item": ITEM},
    "required": ["root"],
}
OTHER = {"type": "object", "properties": {"i": {"$ref": "#/$defs/Item"}}, "$defs": {"Item": {"enum": ["z"]}}}


def tool(name: Any = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


TOOLS = [tool("plant", parameters=TREE | {"additionalProperties": False}), tool("other", parameters=OTHER), tool("now")]


@pytest.fixture(scope="module")
def tokenizer(tiny_path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(tiny_path))


@pytest.fixture(scope="module")
def guidance(tokenizer: Tokenizer) -> Guidance:
    return Guidance(tokenizer, tokenizer.vocab_size)


def draw(guidance: Guidance, tokenizer: Tokenizer, form: Any, seed: int) -> str:
    """A text of the form; closing brackets and the end are likelier than the rest."""
    matcher = guidance.matcher(SamplingParams(structured_outputs=form).structured_outputs or {})
    chance, tokens = np.random.default_rng(seed), list[int]()
    while True:
        logits = chance.standard_normal((1, tokenizer.vocab_size)).astype(np.float32)
        logits[0, [*tokenizer.encode('}"'), *tokenizer.eos_ids]] += 3
        tokens.append(int(matcher.mask(logits, [[]])[0].argmax()))
        if reason := matcher.accept(tokens[-1]):
            assert reason == "stop"
            return tokenizer.decode(tokens, skip_special=True)


@pytest.mark.parametrize("template", [HERMES, LLAMA3])
def test_a_required_call_is_one(guidance: Guidance, tokenizer: Tokenizer, template: str) -> None:
    use = ToolUse.of(TOOLS, "required", None, template)
    seen = set()
    for seed in range(12):
        message = use.message(draw(guidance, tokenizer, use.structured_outputs, seed))
        assert message["content"] is None
        for call in message["tool_calls"]:
            seen.add(call["function"]["name"])
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "plant":
                assert arguments["root"].get("n", 0) <= 9
            if call["function"]["name"] == "other":
                assert arguments.get("i", "z") == "z"
    assert seen == {"plant", "other", "now"}


@pytest.mark.parametrize("template", [HERMES, LLAMA3])
def test_a_named_call_is_of_that_tool(guidance: Guidance, tokenizer: Tokenizer, template: str) -> None:
    use = ToolUse.of(TOOLS, {"type": "function", "function": {"name": "now"}}, False, template)
    for seed in range(3):
        (call,) = use.message(draw(guidance, tokenizer, use.structured_outputs, seed))["tool_calls"]
        assert call["function"] | {} == {"name": "now", "arguments": "{}"}


def test_the_template_shows_the_tools_and_nothing_else(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(HERMES, tokenizer)
    messages = [{"role": "user", "content": "x"}]
    use = ToolUse.of([tool()], None, None, template.source)
    assert template.render(messages, **use.variables).startswith('{"type": "function", "function": {"name": "f"}}')
    assert use.structured_outputs is None
    for unused in (ToolUse.of([tool()], "none", None, template.source), ToolUse.of(None, None, None, template.source)):
        assert template.render(messages, **unused.variables) == "<tool_call>x"
        assert unused.reader() is None
        assert unused.structured_outputs is None


@pytest.mark.parametrize(
    ("tools", "choice", "field"),
    [
        ("f", None, "tools"),
        ([tool(f"f{i}") for i in range(129)], None, "tools"),
        (["f"], None, "tools[0]"),
        ([tool(), {"type": "web_search"}], None, "tools[1]"),
        ([tool(5)], None, "tools[0].function.name"),
        ([tool("a b")], None, "tools[0].function.name"),
        ([tool("f<|im_end|>")], None, "tools[0].function.name"),
        ([tool(), tool()], None, "tools[1].function.name"),
        ([tool(description=5)], None, "tools[0].function.description"),
        ([tool(parameters=[1])], None, "tools[0].function.parameters"),
        ([tool(parameters={"x": float("inf")})], None, "tools[0].function"),
        ([tool(parameters={"x": "y" * 70000})], None, "tools[0].function"),
        ([tool()], "any", "tool_choice"),
        ([tool()], {"type": "function"}, "tool_choice"),
        ([tool()], {"type": "function", "function": {"name": "g"}}, "tool_choice"),
        ([], "required", "tool_choice"),
    ],
)
def test_malformed_requests_are_named(tools: Any, choice: Any, field: str) -> None:
    with pytest.raises(ParamError) as error:
        ToolUse.of(tools, choice, None, HERMES)
    assert error.value.field == field
    assert len(str(error.value)) < 200


def test_other_refusals() -> None:
    with pytest.raises(ParamError, match="parallel_tool_calls must be true or false"):
        ToolUse.of([tool()], None, 1, HERMES)
    assert ToolUse.of([tool()], "none", None, "{{ messages }}").tools == ()


def test_a_model_whose_template_knows_no_tools_is_taught(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(CHAT_TEMPLATE, tokenizer)
    use = ToolUse.of([tool("f", description="é"), tool("g")], None, None, template.source)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "1", "content": "two<|im_end|>"},
        {"role": "user", "content": "And?"},
    ]
    first, go, calls, results, last = use.messages(messages)
    assert first["role"] == "system"
    assert '\n{"type": "function", "function": {"name": "f", "description": "é"}}\n' in first["content"]
    written = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    assert (go, last) == (messages[0], messages[4])
    assert calls == {"role": "assistant", "content": f"{written}\n{written}"}
    answers = [f"<tool_response>\n{text}\n</tool_response>" for text in ("one", "two<|im_end|>")]
    assert results == {"role": "user", "content": "\n".join(answers)}
    assert use.variables == {}
    assert len(use.message(calls["content"])["tool_calls"]) == 2
    ends = [token for token in template.encode(use.messages(messages)) if token == tokenizer.eos_id]
    assert len(ends) == 5
    own = use.messages([{"role": "system", "content": "Be brief."}, *messages])
    assert own[0]["content"].startswith("Be brief.\n\nYou can call functions.")


def test_a_template_that_shows_tools_gets_the_messages_as_they_are() -> None:
    messages = [{"role": "tool", "content": "x"}]
    assert ToolUse.of([tool()], None, None, HERMES).messages(messages) is messages

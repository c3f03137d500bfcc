"""Tool calls in the text of an answer: what is found, whatever the pieces it comes in, and whatever a model writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.text.tool_calls import (
    HERMES,
    LLAMA3,
    Arguments,
    CallStart,
    Content,
    ToolCallReader,
    ToolFormat,
    tool_format,
)
from narrows.text.tools import ToolUse, delta

NAMES = ("weather", "add")
TOOLS = tuple({"type": "function", "function": {"name": name}} for name in NAMES)


def read(form: ToolFormat, pieces: list[str]) -> list[Any]:
    """What the reader finds: content as text, calls as (name, arguments), in order."""
    reader = ToolCallReader(form, NAMES)
    found: list[Any] = []
    for event in [e for piece in pieces for e in reader.push(piece)] + reader.finish():
        if isinstance(event, Content):
            found.append(found.pop() + event.text if found and isinstance(found[-1], str) else event.text)
        elif isinstance(event, CallStart):
            assert event.index == sum(isinstance(f, tuple) for f in found)
            found.append((event.name, ""))
        else:
            assert isinstance(event, Arguments) and event.index == sum(isinstance(f, tuple) for f in found) - 1
            found.append((found[-1][0], found.pop()[1] + event.text))
    assert reader.num_calls == sum(isinstance(f, tuple) for f in found)
    return found


def hermes(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


PARIS = '{"name": "weather", "arguments": {"city": "Paris"}}'
ADD = '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}"}]}}'
NAN = '{"name": "add", "arguments": "{\\"x\\": NaN}"}'
CASES: list[tuple[ToolFormat, str, list[Any]]] = [
    (HERMES, "", []),
    (HERMES, "Hello <b>you</b>\n", ["Hello <b>you</b>\n"]),
    (HERMES, hermes(PARIS), [("weather", '{"city": "Paris"}')]),
    (HERMES, hermes(PARIS, ADD) + "\n", [("weather", '{"city": "Paris"}'), ("add", '{"a": 1, "b": [2, {"c": "}"}]}')]),
    (HERMES, "I look.\n\n" + hermes(PARIS) + "\n\nDone. ", ["I look.", ("weather", '{"city": "Paris"}'), "Done. "]),
    (HERMES, hermes(PARIS).removesuffix("\n</tool_call>"), [("weather", '{"city": "Paris"}')]),
    (HERMES, hermes(PARIS[:-1]), [("weather", '{"city": "Paris"}')]),
    (HERMES, hermes(f'[{PARIS}, {{"name": "add"}}]'), [("weather", '{"city": "Paris"}'), ("add", "{}")]),
    (HERMES, hermes('{"name": "add"}'), [("add", "{}")]),
    (HERMES, hermes('{"name": "add", "arguments": {}}'), [("add", "{}")]),
    (HERMES, hermes('{"arguments": {"x": "<tool_call>"}, "name": "add"}'), [("add", '{"x": "<tool_call>"}')]),
    (HERMES, hermes('{"name": "add", "arguments": "{\\"x\\": 1}"}'), [("add", '{"x": 1}')]),
    (HERMES, hermes('{"name": "add", "arguments": {"x": "</tool_call>"}, "i": 7}'), [("add", '{"x": "</tool_call>"}')]),
    (HERMES, hermes('{"name": "add", "arguments": {"x": "a\n\t\\"b\\\\"}}'), [("add", '{"x": "a\\n\\t\\"b\\\\"}')]),
    (HERMES, "a<tool_cal" + hermes(PARIS), ["a<tool_cal", ("weather", '{"city": "Paris"}')]),
    (HERMES, "<tool_call>" + hermes(PARIS), ["<tool_call>", ("weather", '{"city": "Paris"}')]),
    (HERMES, hermes('{"name": "rm", "arguments": {}}'), [hermes('{"name": "rm", "arguments": {}}')]),
    (HERMES, hermes('{"name": ["add"], "arguments": {}}'), [hermes('{"name": ["add"], "arguments": {}}')]),
    (HERMES, hermes('{"name": "add", "arguments": 5}'), [hermes('{"name": "add", "arguments": 5}')]),
    (HERMES, hermes('{name: "add"}'), [hermes('{name: "add"}')]),
    (HERMES, hermes("[]"), [hermes("[]")]),
    (HERMES, hermes("no call", PARIS), ["<tool_call>\nno call\n</tool_call>", ("weather", '{"city": "Paris"}')]),
    (HERMES, '<tool_call>{"name": "add", "arg', ['<tool_call>{"name": "add", "arg']),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"x": "y', [("add", '{"x": "y')]),
    (HERMES, hermes('{"name": "add", "arguments": {x: 1}}'), [("add", "{"), "x: 1}}\n</tool_call>"]),
    (HERMES, hermes(NAN), [hermes(NAN)]),
    (LLAMA3, '{"name": "add", "parameters": {"a": 1}}', [("add", '{"a": 1}')]),
    (LLAMA3, ' {"name": "add", "parameters": {}}; {"name": "weather"}', [("add", "{}"), ("weather", "{}")]),
    (LLAMA3, "Sure: " + PARIS, ["Sure: " + PARIS]),
    (LLAMA3, '{"answer": 42}', ['{"answer": 42}']),
    (LLAMA3, "[1] a list", ["[1] a list"]),
    (LLAMA3, "{oops", ["{oops"]),
    (LLAMA3, '{"name": "add"}\nDone', [("add", "{}"), "Done"]),
    (LLAMA3, " \n", [" \n"]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_what_is_found(form: ToolFormat, text: str, expected: list[Any]) -> None:
    assert read(form, [text]) == expected


FRAGMENTS = st.sampled_from(
    [
        *(text for _, text, _ in CASES),
        "<",
        "\n",
        " ",
        "<tool_call>",
        "</tool_call>",
        '"',
        "{",
        "}",
        "[",
        "é",
        "x",
        "\\",
        ";",
    ]
)


@given(st.lists(FRAGMENTS, max_size=5).map("".join), st.data(), st.sampled_from([HERMES, LLAMA3]))
@settings(max_examples=400, deadline=None)
def test_the_pieces_do_not_matter(text: str, data: st.DataObject, form: ToolFormat) -> None:
    whole = read(form, [text])
    assert read(form, list(text)) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    assert read(form, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == whole


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.booleans())
@settings(max_examples=200, deadline=None)
def test_arguments_arrive_as_they_were(value: Any, ascii: bool) -> None:
    arguments = json.dumps({"x": value}, ensure_ascii=ascii)
    for form in (HERMES, LLAMA3):
        call = f'{{"name": "add", "{form.arguments}": {arguments}}}'
        text = hermes(call) if form is HERMES else call
        assert read(form, list(text)) == [("add", arguments)]


def test_a_call_is_announced_before_its_arguments_are_there() -> None:
    reader = ToolCallReader(HERMES, NAMES)
    assert reader.push('<tool_call>{"name": "add", "arguments": ') == []
    assert [delta(e) for e in reader.push('{"x')] == [
        {"tool_calls": [{"index": 0, "id": Id(), "type": "function", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x'}}]},
    ]
    assert [delta(e) for e in reader.push('": 1}')] == [
        {"tool_calls": [{"index": 0, "function": {"arguments": '": 1}'}}]}
    ]
    assert [delta(e) for e in reader.push("}</tool_call>Hi")] == [{"content": "Hi"}]


def test_content_is_not_held_longer_than_it_may_be_a_call() -> None:
    reader = ToolCallReader(HERMES, NAMES)
    assert reader.push("Hello, <to") == [Content("Hello,")]
    assert reader.push("ol>") == [Content(" <tool>")]
    assert ToolCallReader(LLAMA3, NAMES).push("Hello ") == [Content("Hello ")]


class Id(str):
    """Equal to every id of a call."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other.startswith("call_") and len(other) == 29


def test_a_whole_answer_as_a_message() -> None:
    use = ToolUse(TOOLS, (), True, HERMES, False)
    function = {"name": "weather", "arguments": '{"city": "Paris"}'}
    call = {"id": Id(), "type": "function", "function": function}
    assert use.message("Hi") == {"role": "assistant", "content": "Hi"}
    assert use.message("") == {"role": "assistant", "content": ""}
    assert use.message(hermes(PARIS)) == {"role": "assistant", "content": None, "tool_calls": [call]}
    broken = '<tool_call>{"name": "add", "arguments": {"x": 1,}}'
    assert use.message("A " + broken) == {"role": "assistant", "content": "A " + broken.removesuffix("}")}
    ids = [each["id"] for each in use.message(hermes(PARIS, PARIS))["tool_calls"]]
    assert ids[0] != ids[1]
    assert ToolUse((), (), True, None, False).message(hermes(PARIS))["content"] == hermes(PARIS)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, None),
        ("{{ messages }}", None),
        ("{% if tools %}<tools>{{ tools }}</tools> <tool_call>{...}</tool_call>{% endif %}", HERMES),
        ('{% if tools %}Respond in the format {"name": function name, "parameters": ...}{% endif %}', LLAMA3),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}", None),
    ],
)
def test_the_format_is_that_of_the_template(template: str | None, expected: ToolFormat | None) -> None:
    assert tool_format(template) == expected

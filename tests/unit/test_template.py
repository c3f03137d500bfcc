"""Chat templates: what they render, what they refuse, and that a hostile one cannot hurt."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from narrows.checkpoints import open_checkpoint
from narrows.text import ChatTemplate, TemplateError, Tokenizer, load_chat_template, load_tokenizer

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(tiny_path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(tiny_path))


@pytest.fixture
def render(tokenizer: Tokenizer) -> Callable[..., str]:
    def run(source: str, messages: Any = USER, **variables: Any) -> str:
        return ChatTemplate(source, tokenizer).render(messages, **variables)

    return run


def test_the_template_of_a_file(tiny_path: Path, tokenizer: Tokenizer):
    template = load_chat_template(open_checkpoint(tiny_path), tokenizer)
    assert template.render(USER) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(USER, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"
    assert template.encode(USER)[0] == 1


def test_one_bos_when_the_template_writes_it(tiny_gguf: Callable[..., Path]):
    changes = {
        "metadata": {"tokenizer.ggml.add_bos_token": True},
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }
    checkpoint = open_checkpoint(tiny_gguf(**changes))
    tokenizer = load_tokenizer(checkpoint)
    template = load_chat_template(checkpoint, tokenizer)
    assert template.render(USER) == "<|im_start|>hi"
    expected = [1, *tokenizer.encode("hi", add_special=False)]
    assert template.encode(USER) == tokenizer.encode(template.render(USER)) == tokenizer.encode("hi") == expected


def test_a_base_model_says_to_use_completion(tiny_gguf: Callable[..., Path]):
    checkpoint = open_checkpoint(tiny_gguf(chat_template=None))
    template = load_chat_template(checkpoint, load_tokenizer(checkpoint))
    assert template.source is None
    with pytest.raises(TemplateError, match=r"no chat template.*plain completion"):
        template.render(USER)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template.jinja": "A", "tokenizer_config.json": {"chat_template": "B"}}, "A"),
        ({"chat_template.json": {"chat_template": "C"}, "tokenizer_config.json": {"chat_template": "B"}}, "C"),
        ({"tokenizer_config.json": {"chat_template": "B"}}, "B"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
                }
            },
            "D",
        ),
        ({"tokenizer_config.json": {}}, None),
    ],
)
def test_the_template_of_a_directory(tmp_path: Path, tokenizer: Tokenizer, files: dict[str, Any], expected: str | None):
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    checkpoint = SimpleNamespace(kind="safetensors", path=tmp_path, metadata={})
    assert load_chat_template(checkpoint, tokenizer).source == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages|tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{{ {'a': '<é>'}|tojson(indent=2) }}", '{\n  "a": "<é>"\n}'),
        ("{{ bos_token ~ eos_token }}", "<|im_start|><|im_end|>"),
        (
            "{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role }}{% if loop.last %}.{% endif %}{% endfor %}",
            "0user.",
        ),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "10"),
        ("{% generation %}{{ 'x' }}{% endgeneration %}", "x"),
        ("{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(3, b=4) }}", "1234"),
        ("{{ messages[0]['content'].replace('h', 'j')|upper }}", "JI"),
        ("{% for m in messages %}{{ '-'.join(m.content) }}{{ m.content.split('h')[-1]|trim }}{% endfor %}", "h-ii"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "1"),
        ("{{ messages|map(attribute='content')|join(', ') }}", "hi"),
        ("{% if x is defined and x is not none %}{{ x }}{% endif %}", "7"),
        ("{% if tools %}no{% else %}{{ undefined_name }}{% endif %}", ""),
        ("  {% if true %}\na\n  {% endif %}\n", "a\n"),
        ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
        ("{{ strftime_now('%Y')|length }}", "4"),
        ("{{ [1, 2] + [3] }}{{ 7 // 2 }}{{ 7 % 4 }}{{ '-' * 3 }}", "[1, 2, 3]33---"),
    ],
)
def test_what_templates_use(render: Callable[..., str], source: str, expected: str):
    assert render(source, x=7) == expected


def test_a_template_may_refuse(render: Callable[..., str]):
    with pytest.raises(TemplateError, match="only one turn"):
        render("{{ raise_exception('only one turn') }}")


def test_tool_calls_and_text_parts(render: Callable[..., str]):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    source = (
        "{{ messages[0].content }}|{{ messages[1].tool_calls[0].function.arguments.x }}|{{ 'content' in messages[1] }}"
    )
    assert render(source, messages) == "a\nb|1|False"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hi", "must be a list"),
        ([], "1 to 16384 messages, not 0"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\]\.role"),
        ([*USER, {"role": 5, "content": "x"}], r"messages\[1\]\.role"),
        ([{"role": "user"}], r"messages\[0\]\.content is missing"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be a string"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\].*reads text only"),
        ([{"role": "user", "content": "x", "tool_calls": "f"}], "tool_calls must be a list"),
        ([{"role": "user", "content": "x", "extra": object()}], r"extra is a object; only JSON"),
        ([{"role": "user", "content": "x", "extra": {1: 2}}], "keys must be strings"),
    ],
)
def test_malformed_messages_are_named(render: Callable[..., str], messages: Any, message: str):
    with pytest.raises(TemplateError, match=message):
        render("x", messages)


def test_nesting_and_reserved_names(render: Callable[..., str]):
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(TemplateError, match="nested more than"):
        render("x", [{"role": "user", "content": "x", "extra": deep}])
    with pytest.raises(TemplateError, match="'bos_token' is set by the engine"):
        render("x", bos_token="x")


REACHES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ raise_exception.__globals__['json'].dumps(1) }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages.append(1) }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ dict.mro() }}",
]
GROW = "{% set n = namespace(x='a') %}{% for i in range(99) %}"
BOMBS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "{% for i in range(90000) %}{% for j in range(90000) if j > 90000 %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ 10**8 * [1] }}",
    "{{ 10**(10**10) }}",
    "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
    "{{ ('b' * 99999).join(range(99999)) }}",
    "{{ range(99999)|join('b' * 99999) }}",
    "{{ 'a'|center(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ messages|tojson(indent=10**9) }}",
    GROW + "{% set n.x = n.x ~ n.x %}{% endfor %}",
    GROW + "{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=1) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    GROW + "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}{% endfor %}",
    "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + GROW + "{% set n.x = m(n.x) %}{% endfor %}",
    "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{% set b = range(90000)|list %}{{ b|select('in', b)|list|length }}",
    "{% for i in range(90000) %}" + "x" * 60000 + "{% endfor %}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "x" * 100000,
    "{% for %}",
    "{{ '",
]


@pytest.mark.parametrize("source", REACHES)
def test_host_objects_are_out_of_reach(render: Callable[..., str], source: str):
    with pytest.raises(TemplateError):
        render(source)


@pytest.mark.parametrize("name", ["messages", "''", "range", "raise_exception", "namespace()", "none", "loop", "self"])
def test_underscored_attributes_are_undefined(render: Callable[..., str], name: str):
    assert render(f"{{{{ {name}.__class__ is defined }}}}") == "False"


@pytest.mark.parametrize("source", BOMBS)
def test_bombs_fail_fast(render: Callable[..., str], monkeypatch: pytest.MonkeyPatch, source: str):
    monkeypatch.setattr("narrows.text.sandbox.MAX_SECONDS", 0.5)
    start = time.thread_time()
    with pytest.raises(TemplateError):
        render(source)
    assert time.thread_time() - start < 2.5


def test_a_long_conversation_is_within_bounds(render: Callable[..., str]):
    messages = [{"role": "user", "content": "word " * 200}] * 2000
    out = render("{% for m in messages %}{{ m.role ~ ': ' ~ m.content|trim ~ '\n' }}{% endfor %}", messages)
    assert len(out) == 2000 * (6 + 999 + 1)


def test_the_template_of_the_default_model(smollm2_path: Path):
    checkpoint = open_checkpoint(smollm2_path)
    template = load_chat_template(checkpoint, load_tokenizer(checkpoint))
    assert template.render(USER) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.encode(USER)[:3] == [1, 9690, 198]

"""The command line and the chat loop, on an engine that only pretends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from narrows.measure.cli import numbers
from narrows.repl import Answer, Repl, stop_on_interrupt

Asked = list[tuple[list[dict[str, str]], dict[str, Any]]]


def validate(settings: dict[str, Any]) -> None:
    temperature = settings.get("temperature", 0)
    if not isinstance(temperature, int | float) or temperature < 0:
        raise ValueError("temperature must be at least 0")


def chat(*lines: str, answer: Callable[..., Answer] | None = None, **options: Any) -> tuple[Repl, list[str], Asked]:
    """Runs a chat on typed lines; returns it, what it showed, and what the engine was asked."""
    shown: list[str] = []
    asked: Asked = []
    typed = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    def echo(messages: list[dict[str, str]], settings: dict[str, Any]) -> Answer:
        asked.append(([*messages], settings))
        return Answer(text=f"re: {messages[-1]['content']}", summary="fast", tokens=2)

    repl = Repl(
        answer=answer or echo,
        validate=validate,
        names=["temperature", "top_k", "stop"],
        settings=options.pop("settings", {}),
        read=read,
        show=shown.append,
        **options,
    )
    repl.run()
    return repl, shown, asked


def test_conversation_is_remembered_until_reset() -> None:
    _, _, asked = chat("hello", "and?", "/reset", "again", system="Be brief.")
    contents = [[m["content"] for m in messages] for messages, _ in asked]
    assert contents == [
        ["Be brief.", "hello"],
        ["Be brief.", "hello", "re: hello", "and?"],
        ["Be brief.", "again"],
    ]
    assert [m["role"] for m in asked[1][0]] == ["system", "user", "assistant", "user"]


def test_several_lines_between_quotes_are_one_message() -> None:
    _, _, asked = chat('"""first', "  second", 'third"""', '"""one"""')
    assert [messages[-1]["content"] for messages, _ in asked] == ["first\n  second\nthird", "one"]


def test_set_checks_the_name_and_the_value() -> None:
    repl, shown, asked = chat(
        "/set temperature 0.7",
        "hi",
        "/set temprature 1",
        "/set temperature -1",
        "/set temperature hot",
        "/set stop END",
        "/set",
    )
    assert asked[0][1] == {"temperature": 0.7}
    assert repl.settings == {"temperature": 0.7, "stop": "END"}
    assert shown == [
        "no parameter temprature; did you mean temperature?",
        "error: temperature must be at least 0",
        "error: temperature must be at least 0",
        'temperature=0.7 stop="END"',
    ]


def test_stats_help_unknown_and_exit() -> None:
    _, shown, asked = chat("/stats", "hi", "/stats", "/nonsense", "/help", "", "/exit", "never asked")
    assert shown[:4] == ["no answer yet", "0 answers, 0 tokens", "fast", "1 answers, 2 tokens"]
    assert shown[4] == "unknown command /nonsense; /help lists them"
    assert "/set NAME VALUE" in shown[5]
    assert len(asked) == 1


def test_refused_message_is_dropped_and_the_chat_goes_on() -> None:
    answers = iter([ValueError("the prompt is too long"), Answer("ok", "", 1)])

    def answer(messages: list[dict[str, str]], settings: dict[str, Any]) -> Answer:
        outcome = next(answers)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    repl, shown, _ = chat("long", "short", answer=answer)
    assert shown == ["error: the prompt is too long"]
    assert [m["content"] for m in repl.messages] == ["short", "ok"]


def test_interrupt_at_the_prompt_does_not_leave() -> None:
    def read() -> Iterator[str]:
        yield "hi"

    typed = read()
    pressed = []

    def line(prompt: str) -> str:
        if not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    shown: list[str] = []
    repl = Repl(lambda m, s: Answer("ok", "", 1), validate, [], {}, read=line, show=shown.append)
    repl.run()
    assert repl.num_answers == 1
    assert "/exit" in shown[0]


def test_first_interrupt_asks_and_the_second_insists() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_number_lists() -> None:
    assert numbers("0,4096", "--context", at_least=0) == [0, 4096]
    with pytest.raises(ValueError, match=r"--batch is '1,,8'; it must be whole numbers"):
        numbers("1,,8", "--batch", at_least=1)
    with pytest.raises(ValueError, match=r"--batch holds 0; the smallest allowed is 1"):
        numbers("1,0", "--batch", at_least=1)

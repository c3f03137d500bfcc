"""The chat loop of ``narrows run MODEL`` in a terminal: read a message, stream an answer, remember both."""

from __future__ import annotations

import difflib
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import Any

from .machine import cache_dir

HELP = """\
/set NAME VALUE   set a sampling parameter, e.g. /set temperature 0.7; /set alone shows what is set
/system TEXT      set the system prompt and start over
/reset            forget the conversation
/stats            what the last answer cost, and the totals of this session
/help             this text
/exit             leave (so does Ctrl-D)
\"\"\"               begins and ends a message of several lines
Ctrl-C            stops the answer, not the program"""


class Stop:
    """Whether the user asked for the answer to end."""

    requested = False


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """The first Ctrl-C inside only sets a flag, so that no step is cut in half; a second one interrupts for good."""
    stop = Stop()

    def handle(signum: int, frame: Any) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)


@dataclass(slots=True)
class Answer:
    """One finished answer and what it cost."""

    text: str
    summary: str  # the ledger's line
    tokens: int


@dataclass(slots=True)
class Repl:
    """The loop. It talks through `answer(messages, settings)`, which streams to the screen; the rest is bookkeeping.

    Args:
        answer: produces one answer; raises ValueError, with a message for the user, when it cannot.
        validate: raises ValueError when the sampling settings are not acceptable.
        names: the sampling parameters ``/set`` knows.
        read: one line of input for a prompt; raises EOFError at the end of input.
        show: prints one line that is not part of an answer.
    """

    answer: Callable[[list[dict[str, str]], dict[str, Any]], Answer]
    validate: Callable[[dict[str, Any]], object]
    names: list[str]
    settings: dict[str, Any]
    system: str | None = None
    read: Callable[[str], str] = input
    show: Callable[[str], None] = print
    messages: list[dict[str, str]] = field(default_factory=list)
    last: Answer | None = None
    num_answers: int = 0
    num_tokens: int = 0

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def run(self) -> None:
        """Until /exit or the end of input."""
        while True:
            try:
                text = self._read_message()
            except EOFError:
                return
            except KeyboardInterrupt:
                self.show("\n(Ctrl-D or /exit leaves)")
                continue
            if text.startswith("/"):
                if text.split()[0] in ("/exit", "/quit", "/bye"):
                    return
                self._command(text)
            elif text:
                self._ask(text)

    def _read_message(self) -> str:
        line = self.read(">>> ").strip()
        if not line.startswith('"""'):
            return line
        lines = [line[3:]]
        while not lines[-1].rstrip().endswith('"""'):
            lines.append(self.read("... "))
        lines[-1] = lines[-1].rstrip()[:-3]
        return "\n".join(lines).strip()

    def _ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        try:
            self.last = self.answer(self.messages, self.settings)
        except (ValueError, KeyboardInterrupt) as error:
            self.messages.pop()
            self.show(f"error: {error}" if isinstance(error, ValueError) else "\n(stopped; your message was dropped)")
            return
        self.messages.append({"role": "assistant", "content": self.last.text})
        self.num_answers += 1
        self.num_tokens += self.last.tokens

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        if name == "/set":
            self._set(rest)
        elif name == "/system":
            self.system = rest or None
            self.reset()
        elif name in ("/reset", "/clear"):
            self.reset()
        elif name == "/stats":
            self.show(self.last.summary if self.last else "no answer yet")
            self.show(f"{self.num_answers} answers, {self.num_tokens} tokens")
        elif name == "/help":
            self.show(HELP)
        else:
            self.show(f"unknown command {name}; /help lists them")

    def _set(self, rest: str) -> None:
        if not rest:
            self.show(" ".join(f"{k}={json.dumps(v)}" for k, v in self.settings.items()) or "everything at its default")
            return
        name, _, value = rest.partition(" ")
        if name not in self.names:
            near = difflib.get_close_matches(name, self.names, n=1)
            self.show(f"no parameter {name}" + (f"; did you mean {near[0]}?" if near else ""))
            return
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        changed = {**self.settings, name: parsed}
        try:
            self.validate(changed)
        except ValueError as error:
            self.show(f"error: {error}")
        else:
            self.settings = changed


def setting_names(params: type) -> list[str]:
    """Field names of the sampling parameters' dataclass."""
    return [f.name for f in fields(params)]


@contextmanager
def line_editing() -> Iterator[None]:
    """Arrow keys and a history kept between sessions, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = cache_dir() / "history"
    readline.set_history_length(1000)
    with suppress(OSError):  # the first session has none
        readline.read_history_file(path)
    try:
        yield
    finally:
        with suppress(OSError):  # a read-only home keeps none
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)

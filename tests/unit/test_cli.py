"""The command line and the chat loop, on an engine that only pretends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from narrows import cli, sampling
from narrows.ledger import RequestMetrics
from narrows.measure import bandwidth
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


class FakeStream:
    """Streams words; one of them is Ctrl-C."""

    def __init__(self, words: list[str], log: list[Any]) -> None:
        self.words, self.log = words, log
        metrics = RequestMetrics(arrival=0, num_prompt=5, num_output=3, first_token=0.5, last_token=1.5)
        metrics.weight_bytes, metrics.kv_bytes = 2e9, 2e8
        self.completion = SimpleNamespace(text="", token_ids=[1, 2, 3], finish_reason="stop", metrics=metrics)
        self.output = SimpleNamespace(outputs=[self.completion])

    def __iter__(self) -> Iterator[str]:
        for word in self.words:
            if word == "^C":
                os.kill(os.getpid(), signal.SIGINT)
                continue
            self.completion.text += word
            yield word

    def close(self) -> None:
        self.log.append("closed")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces the model by one that answers `words`; `log` says how it was used."""
    state = SimpleNamespace(words=["Blue", " light", "."], log=[])

    class FakeLLM:
        stack, num_threads = "weights=auto", 2

        def __init__(self, model: str, **options: Any) -> None:
            state.log.append((model, options))

        def stream(self, prompt: Any, params: sampling.SamplingParams) -> FakeStream:
            state.log.append((prompt, params))
            return FakeStream(state.words, state.log)

    import narrows

    monkeypatch.setattr(narrows, "LLM", FakeLLM, raising=False)
    monkeypatch.setattr(bandwidth, "bandwidth", lambda threads: 10.0 * threads)
    return state


def narrows_command(*args: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(cli.app, args, input=stdin, catch_exceptions=True)


def test_answer_goes_to_stdout_and_its_cost_to_stderr(fake: SimpleNamespace) -> None:
    result = narrows_command("run", "m", "Why?", "--system", "Be brief.", "--temp", "0.5", "-n", "9", "--stop", "END")
    assert result.exit_code == 0
    assert result.stdout == "Blue light.\n"
    assert "2.0 tokens/s" in result.stderr
    assert "11% of the 20.0 GB/s bound" in result.stderr
    (model, options), (prompt, params), closed = fake.log
    assert (model, closed) == ("m", "closed")
    assert options == {"weights": None, "stack": None, "num_threads": None, "max_model_len": None}
    assert prompt == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert params == sampling.SamplingParams(temperature=0.5, max_tokens=9, stop=["END"])


def test_drafts_become_part_of_the_stack(fake: SimpleNamespace) -> None:
    for flags, stack in (
        (["--draft", "ngram:k=4"], " draft=ngram:k=4"),
        (["--draft-model", "small"], " draft=model:model=small"),
        (["--draft", "ngram", "--stack", "verify=rejection"], "verify=rejection draft=ngram"),
    ):
        fake.log.clear()
        assert narrows_command("run", "m", "Why?", *flags).exit_code == 0
        assert fake.log[0][1]["stack"] == stack
    both = narrows_command("run", "m", "Why?", "--draft", "ngram", "--draft-model", "small")
    assert "give one of the two" in str(both.exception)


def test_an_answer_may_be_held_to_a_form(fake: SimpleNamespace, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    assert narrows_command("run", "m", "How many?", "--json-schema", str(schema)).exit_code == 0
    assert fake.log[1][1].structured_outputs == {"json": '{"type": "integer"}'}
    assert narrows_command("run", "m", "How many?", "--regex", "[0-9]+").exit_code == 0
    assert fake.log[4][1].structured_outputs == {"regex": "[0-9]+"}
    refused = narrows_command("run", "m", "How many?", "--regex", "a", "--json-schema", str(schema))
    assert "exactly one of json, regex" in str(refused.exception)


def test_prompt_from_a_pipe_and_raw_completion(fake: SimpleNamespace) -> None:
    assert narrows_command("run", "m", "--raw", stdin="Once upon").exit_code == 0
    assert fake.log[1][0] == "Once upon"


def test_json_is_one_object_and_nothing_else(fake: SimpleNamespace) -> None:
    result = narrows_command("run", "m", "Why?", "--json")
    answer = json.loads(result.stdout)
    assert answer["text"] == "Blue light."
    assert answer["finish_reason"] == "stop"
    assert answer["ledger"]["ttft_seconds"] == 0.5
    assert answer["ledger"]["bandwidth_share"] == pytest.approx(0.11)
    assert result.stderr == ""


def test_interrupt_stops_the_answer_and_frees_the_request(fake: SimpleNamespace) -> None:
    fake.words = ["Blue", "^C", " light", " never"]
    result = narrows_command("run", "m", "Why?")
    assert result.exit_code == 0
    assert result.stdout == "Blue light\n"
    assert fake.log[-1] == "closed"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["hi", "--temperature", "-1"], "temperature is -1.0; it must be between 0 and 100"),
        (["hi", "--temperature", "nan"], "temperature is nan; it must be between 0 and 100"),
        (["hi", "-n", "0"], "max_tokens is 0; it must be 1 or more"),
        (["hi", "--regex", ""], "structured_outputs.regex must be a regular expression"),
        ([" "], "the prompt is empty"),
        (["hi", "--raw", "--system", "x"], "--raw continues a given PROMPT as it is"),
    ],
)
def test_what_a_user_gets_wrong_is_said_before_a_model_is_loaded(
    fake: SimpleNamespace, args: list[str], message: str
) -> None:
    result = narrows_command("run", "m", *args)
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)
    assert fake.log == []


def test_models_are_listed_with_their_problems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_path: Path
) -> None:
    monkeypatch.setenv("NARROWS_MODELS", str(tmp_path))
    assert "narrows pull smollm2" in narrows_command("models").stdout
    (tmp_path / "good.gguf").write_bytes(tiny_path.read_bytes())
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    bad, good = json.loads(narrows_command("models", "--json").stdout)
    assert (bad["name"], good["name"]) == ("bad", "good")
    assert bad["problem"]
    assert good["problem"] is None
    assert good["family"] == "llama"
    assert "good" in narrows_command("models").stdout


def test_documented_sampling_table_is_that_of_the_code() -> None:
    table = narrows_command("params").stdout.strip()
    assert table.startswith("| parameter |")
    document = Path(__file__).parents[2] / "docs" / "sampling.md"
    assert table in document.read_text(), "run `narrows params` and put its table into docs/sampling.md"


def python_m_narrows(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "narrows", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env})


def test_user_errors_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = python_m_narrows("run", str(tmp_path / "absent.gguf"), "hi")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("narrows: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" in python_m_narrows("run", str(tmp_path / "absent.gguf"), "hi", NARROWS_DEBUG="1").stderr


def test_help_does_not_load_the_engine() -> None:
    code = "import sys, narrows.cli; print([m for m in ('numpy', 'tokenizers', 'narrows.engine') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_bench_decode_writes_a_result_with_provenance(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_path: Path
) -> None:
    monkeypatch.setenv("NARROWS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bandwidth, "bandwidth", lambda threads: 10.0)
    out = tmp_path / "results" / "decode.json"
    options = ["--context", "0,70", "--batch", "1,3", "--steps", "2", "--repeats", "2", "--threads", "1"]
    result = narrows_command("bench", "decode", str(tiny_path), *options, "--json", "--out", str(out))
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert record == json.loads(result.stdout)
    assert [(r["threads"], r["context"], r["batch"]) for r in record["rows"]] == [
        (1, 0, 1),
        (1, 0, 3),
        (1, 70, 1),
        (1, 70, 3),
    ]
    assert record["rows"][2]["kv_bytes_per_token"] > record["rows"][0]["kv_bytes_per_token"]
    assert record["provenance"]["model"]["name"] == "tiny.gguf"
    table = narrows_command("bench", "prefill", str(tiny_path), "--tokens", "100", "--threads", "1", "--repeats", "1")
    assert table.exit_code == 0, table.output
    assert "tokens/s" in table.stdout

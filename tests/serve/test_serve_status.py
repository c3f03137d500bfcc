"""The live figures, and which tokens of a stream were guessed ahead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
from servers import SECONDS, Server, wait

from narrows.serve import wire
from narrows.serve.answers import Run
from narrows.types import TokenLogprobs

STATUS, STREAM = "/v1/narrows/status", "/v1/narrows/status/stream"
REPEAT = [{"role": "user", "content": "Write the numbers from one to thirty as words, one per line, as a list."}]


@contextmanager
def listen(server: Server) -> Iterator[Iterator[dict[str, Any]]]:
    """The figures as they come."""
    with server.client.stream("GET", STREAM) as reply:
        assert reply.status_code == 200
        yield (json.loads(line[6:])["models"][0] for line in reply.iter_lines() if line.startswith("data: "))


def test_the_figures_are_those_of_the_metrics(tiny: Server) -> None:
    tiny.complete("the cat", max_tokens=5)
    assert wait(tiny.quiet)
    [model] = tiny.client.get(STATUS).json()["models"]
    assert (model["id"], model["state"], model["num_running"], model["num_used_pages"]) == ("tiny", "ready", 0, 0)
    totals = model["totals"]
    for name, metric in (("steps", "steps"), ("weight_bytes", "weight_bytes"), ("kv_bytes", "kv_bytes")):
        assert totals[name] == tiny.metric(f"narrows_{metric}_total") > 0
    assert totals["output_tokens"] == tiny.metric("vllm:generation_tokens_total") >= 5
    assert totals["step_seconds"] >= totals["forward_seconds"] > 0


def test_they_need_the_key(tiny: Server) -> None:
    for path in (STATUS, STREAM):
        assert httpx.get(tiny.url + path).status_code == 401


def test_a_stream_tells_of_each_change(tiny: Server) -> None:
    with listen(tiny) as figures:
        before = next(figures)["totals"]["output_tokens"]
        tiny.complete("the cat", max_tokens=7)
        assert next(f for f in figures if f["totals"]["output_tokens"] == before + 7)


def test_streams_are_bounded_and_end_when_nobody_listens(tiny: Server) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=tiny.url, headers=tiny.client.headers, timeout=SECONDS))
        replies = [stack.enter_context(client.stream("GET", STREAM)) for _ in range(64)]
        assert {reply.status_code for reply in replies} == {200}
        refused = client.get(STREAM)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_watchers")
        assert client.get(STATUS).status_code == 200

    def again() -> bool:
        with tiny.client.stream("GET", STREAM) as reply:
            return reply.status_code == 200

    assert wait(again)


def test_a_stream_holds_up_no_shutdown(start: Callable[..., Server], tiny_path: Path) -> None:
    server = start(tiny_path, "--threads", "1", "--shutdown-timeout", "600").ready()
    with listen(server) as figures:
        next(figures)
        server.process.terminate()
        for _ in figures:
            pass
    assert server.process.wait(SECONDS) == 0


@pytest.fixture(scope="module")
def drafting(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = ("--threads", "1", "-c", "1024", "--stack", "draft=ngram pace=fixed")
    server = Server(tmp_path_factory.mktemp("drafting") / "log", smollm2_path, *args)
    yield server.ready()
    server.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_says_which_tokens_were_guessed_if_asked(drafting: Server, path: str) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
    asked |= {"messages": REPEAT, "logprobs": True} if "chat" in path else {"prompt": "1 2 3 1 2 3 1 2", "logprobs": 0}

    def stream(**options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        options |= {"include_usage": True}
        *events, last, done = drafting.stream(path, **asked, stream_options=options)
        assert done == "[DONE]"
        return [choice for event in events for choice in event["choices"]], last["ledger"]

    plain, _ = stream()
    marked, ledger = stream(include_drafted=True)
    assert not any("drafted" in choice for choice in plain)
    assert _text(marked) == _text(plain)
    assert _num_tokens(marked) == _num_tokens(plain) == 40
    guessed = [choice for choice in marked if choice["drafted"]]
    assert _num_tokens(guessed) == ledger["speculation"]["accepted_tokens"] > 0


def _text(choices: list[dict[str, Any]]) -> str:
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)


def _num_tokens(choices: list[dict[str, Any]]) -> int:
    given = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    return sum(len(logprobs["content"] if "content" in logprobs else logprobs["tokens"]) for logprobs in given)


def test_marking_changes_no_answer_that_a_stop_string_ends(drafting: Server) -> None:
    asked = {"messages": REPEAT, "temperature": 0, "max_tokens": 60, "stop": ["0123456789012"]}

    def stream(**options: Any) -> list[dict[str, Any]]:
        events = drafting.stream("/v1/chat/completions", **asked, stream_options=options)
        return [choice for event in events if event != "[DONE]" for choice in event["choices"]]

    plain, marked = stream(), stream(include_drafted=True)
    assert _text(marked) == _text(plain)
    assert [c["finish_reason"] for c in marked if c["finish_reason"]] == ["stop"]
    assert any(choice["drafted"] for choice in marked)


@pytest.mark.parametrize(("num", "length", "marks"), [(0, 0, [False]), (2, 3, [True, False]), (3, 4, [True])])
def test_guesses_and_others_come_one_after_the_other(num: int, length: int, marks: list[bool]) -> None:
    logprobs = [TokenLogprobs(token, -1.0, 1, []) for token in (7, 8, 9)]
    delta = wire.Delta("a", 0, "abcd", [7, 8, 9], logprobs, [None], "stop", 9, 2, {"ttft_seconds": 1}, num, length)
    job = SimpleNamespace(submit=SimpleNamespace(params=SimpleNamespace(n=1), prompt=[1]), position=0)

    class Call:
        jobs: ClassVar = [job]

        async def __aiter__(self) -> AsyncIterator[tuple[int, wire.Delta]]:
            yield 0, delta

    async def collect() -> list[tuple[str, bool, str | None, int]]:
        run = Run(Call(), apart=True)  # type: ignore[arg-type]
        return [
            (text, answer.drafted, answer.finish_reason, len(answer.take_logprobs()))
            async for answer, text in run.news()
        ]

    news = asyncio.run(collect())
    assert [drafted for _, drafted, _, _ in news] == marks
    assert "".join(text for text, *_ in news) == "abcd"
    assert [reason for _, _, reason, _ in news] == [None] * (len(news) - 1) + ["stop"]
    assert [n for *_, n in news] == ([num, 3 - num] if len(marks) == 2 else [3])


def test_include_drafted_is_for_streams_of_choices(tiny: Server) -> None:
    options = {"include_drafted": True}
    reply = tiny.post("/v1/completions", prompt="x", stream_options=options)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream_options")
    reply = tiny.post("/v1/responses", input="x", stream=True, stream_options=options)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "include_drafted")

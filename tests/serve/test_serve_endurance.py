"""The same, many times over: clients that leave, processes that are killed, signals, and a long mixed load.

Each is there in small, here or in test_serve_faults, and in full for `make test-long`.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
import soak
from servers import PAGE_BYTES, SECONDS, Server, wait

from narrows import LLM, SamplingParams

full = [pytest.mark.long, pytest.mark.timeout(3600)]


def sizes(small: int, whole: int) -> Any:
    """A test in small, and in full."""
    return pytest.mark.parametrize("times", [small, pytest.param(whole, marks=full)])


@sizes(30, 1000)
def test_clients_that_leave_at_any_point(times: int, wide: Server) -> None:
    """In the queue, while their prompt is read, while they are answered, at the last chunk: their pages are free."""

    def leave(seed: int) -> None:
        rng = random.Random(seed)
        body: dict[str, Any] = {"prompt": "the cat " * rng.choice([1, 40, 800]), "n": rng.randint(1, 2)}
        body |= {"max_tokens": rng.choice([1, 5, 200]), "ignore_eos": True, "stream": rng.random() < 0.7}
        seconds = httpx.Timeout(rng.uniform(0.001, 0.3), connect=SECONDS)
        try:
            with httpx.stream("POST", f"{wide.url}/v1/completions", json=body, timeout=seconds) as reply:
                for count, _ in enumerate(reply.iter_raw()):
                    if count == rng.choice([0, 1, 4, 5, 20]):
                        break
        except httpx.TimeoutException:
            pass

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(times)))
    began = time.monotonic()
    wait(wide.quiet)
    print(f"pages are free {time.monotonic() - began:.2f} s after the last of {times} clients left")
    assert wide.complete("the cat")["choices"]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_processes_that_are_killed_under_load(tiny_path: Path, start: Callable[..., Server]) -> None:
    """Every request is answered, or told that its process ended; those after it are answered."""
    times = 20
    server = start(tiny_path, "--threads", "1").ready()
    want = server.complete("the cat", max_tokens=30, ignore_eos=True)["choices"]
    stop = threading.Event()
    outcomes: list[int] = []

    def ask() -> None:
        while not stop.is_set():
            reply = server.post("/v1/completions", prompt="the cat", max_tokens=30, temperature=0, ignore_eos=True)
            assert reply.status_code != 200 or reply.json()["choices"] == want
            outcomes.append(reply.status_code)

    with ThreadPoolExecutor(8) as pool:
        askers = [pool.submit(ask) for _ in range(8)]
        try:
            for _ in range(times):
                enough = len(outcomes) + 8
                wait(lambda enough=enough: len(outcomes) >= enough)
                [victim] = server.subservers()
                os.kill(victim, signal.SIGKILL)
                wait(lambda victim=victim: server.subservers() not in ([], [victim]))
                server.ready()
        finally:
            stop.set()
        for asker in askers:
            asker.result()
    print(f"{times} kills under load: {Counter(outcomes)}")
    assert set(outcomes) == {200, 503}
    assert server.metric("narrows_restarts_total") == times
    assert server.quiet()


@sizes(1, 20)
def test_signals_under_load_cut_no_answer(times: int, tiny_path: Path, start: Callable[..., Server]) -> None:
    """After SIGTERM what was begun is brought to its end, whole or streamed, and what comes later finds nobody."""
    outcomes: Counter[str] = Counter()
    for _ in range(times):
        server = start(tiny_path, "--threads", "1", "--shutdown-timeout", "60").ready()
        found: list[str] = []
        with ThreadPoolExecutor(8) as pool:
            askers = [pool.submit(_until_gone, server.url, stream, found) for stream in [True, False] * 4]
            wait(lambda: len(found) >= 8)  # noqa: B023
            server.process.send_signal(signal.SIGTERM)
            for asker in askers:
                asker.result()
        assert server.process.wait(SECONDS) == 0
        outcomes.update(found)
    print(f"{times} signals under load: {outcomes}")
    assert outcomes.keys() == {"whole", "gone"}, outcomes


def _until_gone(url: str, stream: bool, found: list[str]) -> None:
    """Asks again and again until the server has gone; notes what became of each request."""
    body = {"prompt": "the cat", "max_tokens": 40, "ignore_eos": True, "stream": stream}
    while "gone" not in found:
        data = b""
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=SECONDS) as reply:
                for piece in reply.iter_raw():
                    data += piece
            ended = data.endswith(b"data: [DONE]\n\n") if stream else reply.status_code == 200
            found.append("whole" if ended else f"cut: {data[-200:]!r}")
        except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError) as error:
            found.append("gone" if not data else f"cut: {error}")


@sizes(120, 10_000)
def test_answers_hold_nothing_of_other_requests(times: int, wide: Server, tiny_gguf: Callable[..., Path]) -> None:
    """Interleaved requests with markers of their own, shared beginnings, too few pages, and clients that leave.

    Text and log-probabilities, which tell any two prompts apart, are those of the prompt alone and offline.
    """
    rng = random.Random(4)
    heads = ["", "the cat in the hat " * 30, "a rat on a mat " * 60, "in the hall " * 200]
    prompts = [f"{rng.choice(heads)}marker {i:05d} {rng.getrandbits(64):x} is" for i in range(min(times, 400))]
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "logprobs": 0}
    offline = LLM(tiny_gguf(context=4096), num_threads=1, cache=False)
    outputs = [out.outputs[0] for out in offline.generate(prompts, SamplingParams(**given))]
    want = [(output.text, [t.logprob for t in output.logprobs or []]) for output in outputs]
    assert len({tuple(logprobs) for _, logprobs in want}) == len(prompts)
    preempted = wide.metric("vllm:num_preemptions_total")

    def ask(i: int) -> bool:
        which = random.Random(i).randrange(len(prompts))
        if i % 5 == 0:  # leaves; sometimes it had wanted more pages than there are
            more = {"stream": True} | ({"max_tokens": 400, "n": 12} if i % 50 == 0 else {})
            body = {"prompt": prompts[which], **given, **more}
            with httpx.stream("POST", f"{wide.url}/v1/completions", json=body, timeout=SECONDS) as reply:
                for _ in islice(reply.iter_raw(), i % 700):
                    pass
            return True
        [choice] = wide.complete(prompts[which], **given)["choices"]
        return (choice["text"], choice["logprobs"]["token_logprobs"]) == want[which]

    with ThreadPoolExecutor(24) as pool:
        foreign = [i for i, good in enumerate(pool.map(ask, range(times))) if not good]
    preempted = wide.metric("vllm:num_preemptions_total") - preempted
    print(f"{times} interleaved requests: {len(foreign)} with anything foreign, {preempted:.0f} preemptions")
    assert not foreign


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_long_mixed_load_loses_and_keeps_nothing(tiny_path: Path, start: Callable[..., Server]) -> None:
    """Minutes from $NARROWS_SOAK_MINUTES."""
    cache = ("--kv-cache-bytes", str(32 * PAGE_BYTES))  # all of it is in use soon
    server = start(tiny_path, "--threads", "1", *cache).ready()
    result = soak.run(server, 60 * float(os.environ.get("NARROWS_SOAK_MINUTES", "5")))
    print(result)
    assert result.lost == 0
    assert result.grown_bytes < max(1 << 20, result.tokens)  # a byte a token, or nothing to speak of
    assert result.grown_descriptors <= 2
    assert server.quiet()


def test_a_short_mixed_load_loses_nothing(wide: Server) -> None:
    assert soak.run(wide, 2).lost == 0

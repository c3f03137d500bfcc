"""Clients that leave, processes that die, signals, full queues, models that are damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import SECONDS, Server, wait
from typer.testing import CliRunner

from narrows.cli import app

LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def slow(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One answer at a time, of a model that takes seconds for it."""
    args = ("--threads", "1", "-c", "1024", "--stack", "scheduler=continuous:max_num_seqs=1")
    server = Server(tmp_path_factory.mktemp("slow") / "log", smollm2_path, *args, "--max-queued-requests", "2")
    yield server.ready()
    server.close()


def events(server: Server, **body: Any) -> Iterator[Any]:
    return server.stream("/v1/completions", **{"prompt": "Once upon a time", **LONG, **body})


def test_clients_that_leave_free_their_pages(slow: Server) -> None:
    """O14: one leaves in its answer, one in the queue, one in its prompt; the server goes on."""
    aborted = slow.metric("vllm:request_success_total", finished_reason="abort")
    first = events(slow)
    next(first)
    queued = threading.Thread(target=lambda: _give_up(slow, "Water boils", 0.5))
    queued.start()
    wait(lambda: slow.metric("vllm:num_requests_waiting") == 1)
    assert slow.client.get("/livez").status_code == 200
    queued.join()
    wait(lambda: slow.metric("vllm:num_requests_waiting") == 0)
    assert slow.metric("vllm:num_requests_running") == 1
    first.close()
    wait(slow.quiet, 5)
    _give_up(slow, "word " * 900, 0.3)  # whole, not streamed, and still reading
    wait(slow.quiet, 10)
    assert slow.metric("vllm:request_success_total", finished_reason="abort") == aborted + 3
    assert slow.complete("The capital of France is")["choices"][0]["text"].startswith(" Paris")


def _give_up(server: Server, prompt: str, seconds: float) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json={"prompt": prompt, **LONG}, timeout=seconds)


def test_a_process_that_dies_fails_what_it_began_and_nothing_else(slow: Server) -> None:
    with ThreadPoolExecutor(2) as pool:
        began = events(slow)
        next(began)
        queued = pool.submit(slow.complete, "The capital of France is", max_tokens=4)
        wait(lambda: slow.metric("vllm:num_requests_waiting") == 1)
        os.kill(slow.subservers()[0], signal.SIGKILL)
        last = list(began)[-1]
        assert last["error"]["code"] == "unavailable"  # and no [DONE]
        assert queued.result()["choices"][0]["text"].startswith(" Paris")
        assert slow.metric("narrows_restarts_total") == 1
        assert slow.metric("vllm:request_success_total", finished_reason="error") == 1

        whole = pool.submit(slow.post, "/v1/completions", prompt="Once upon a time", **LONG)
        wait(lambda: slow.metric("vllm:num_requests_running") == 1)
        os.kill(slow.subservers()[0], signal.SIGKILL)
        assert whole.result().status_code == 503
        states = []
        wait(lambda: states.append(slow.client.get("/readyz").status_code) or states[-1] == 200)
        assert 503 in states
        assert slow.client.get("/livez").status_code == 200
        assert slow.complete("The capital of France is")["choices"][0]["text"].startswith(" Paris")


def test_a_full_queue_says_when_to_come_back(slow: Server) -> None:
    with ThreadPoolExecutor(3) as pool:
        stream = events(slow)
        next(stream)
        queued = [pool.submit(slow.complete, "Water boils at", max_tokens=2) for _ in range(2)]
        wait(lambda: slow.metric("vllm:num_requests_waiting") == 2)
        refused = slow.post("/v1/completions", prompt="x", max_tokens=1)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert slow.client.get("/readyz").status_code == 200
        stream.close()
        assert all(future.result()["choices"][0]["text"] for future in queued)


def test_a_deadline_ends_a_request_even_in_the_queue(slow: Server) -> None:
    stream = events(slow)
    next(stream)
    steps = slow.metric("narrows_read_tokens_total")
    headers = {"X-Request-Timeout": "0.5"}
    reply = slow.client.post("/v1/completions", json={"prompt": "word " * 500}, headers=headers)
    assert reply.status_code == 504 and reply.json()["error"]["code"] == "deadline"
    assert slow.metric("narrows_read_tokens_total") - steps < 500  # its prompt was never read
    stream.close()
    reply = slow.client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Timeout": "soon"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "X-Request-Timeout")


def test_sigterm_lets_requests_finish(smollm2_path: Path, start: Callable[..., Server]) -> None:
    server = start(smollm2_path, "--threads", "1", "-c", "1024").ready()
    stream = events(server, max_tokens=20)
    received = [next(stream)]
    process = server.subservers()[0]
    server.process.send_signal(signal.SIGTERM)
    os.kill(process, signal.SIGTERM)  # as when it goes to the whole group
    received += stream
    assert received[-1] == "[DONE]" and received[-2]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(SECONDS) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_sigterm_ends_what_takes_too_long(smollm2_path: Path, start: Callable[..., Server]) -> None:
    server = start(smollm2_path, "--threads", "1", "-c", "1024", "--shutdown-timeout", "0.5").ready()
    stream = events(server, max_tokens=900)
    next(stream)
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    last = list(stream)[-1]
    assert "shutting down" in last["error"]["message"]
    assert server.process.wait(SECONDS) == 0
    assert time.monotonic() - began < 20


def damaged(folder: Path, kind: str) -> tuple[Path, str]:
    """A model file that lies about itself, and what has to be said of it."""
    if kind == "shape":  # 82 bytes
        header = b'{"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}'.ljust(70)
        (folder / "config.json").write_text('{"model_type": "llama"}')
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
        return folder, "tensor 'w': shape [1000, 1000] of F32 takes 4000000 bytes"
    start = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    (folder / "bad.gguf").write_bytes(start + int(kind).to_bytes(8, "little") + b"abcd")  # 36 bytes
    return folder / "bad.gguf", f"metadata key 0 of 1 at byte 24: its name is {kind} bytes long"


@pytest.mark.parametrize("kind", [str(2**63 - 1), str(2**40), "shape"])
def test_a_damaged_model_is_named_at_the_start(kind: str, tmp_path: Path) -> None:
    """O11, O12: lengths and shapes beyond the file."""
    path, words = damaged(tmp_path, kind)
    result = CliRunner().invoke(app, ["serve", str(path), "--port", "0"])
    assert isinstance(result.exception, ValueError)
    assert words in str(result.exception) and str(tmp_path) in str(result.exception)


def test_a_model_damaged_while_it_is_served_is_down_alone(
    tiny_path: Path, tiny_gguf: Callable[..., Path], start: Callable[..., Server], tmp_path: Path
) -> None:
    """O11, O12: its process dies and cannot come back until the file is whole; the other model answers throughout."""
    path = tiny_gguf(seed=2)
    server = start(path, tiny_path, "--served-model-name", "one", "--served-model-name", "two", "--threads", "1")
    want = server.ready().complete("the cat", model="two")["choices"]
    good = path.rename(path.with_suffix(".good"))
    damaged(tmp_path, str(2**40))[0].rename(path)
    os.kill(server.subservers()[0], signal.SIGKILL)
    wait(lambda: server.client.get("/readyz").json()["models"]["one"] == "failed")
    down = server.post("/v1/completions", model="one", prompt="the cat")
    assert (down.status_code, down.json()["error"]["code"]) == (503, "unavailable")
    assert "bad.gguf" not in down.text and "metadata key 0 of 1 at byte 24" in server.log.read_text()
    assert server.complete("the cat", model="two")["choices"] == want
    assert server.client.get("/livez").status_code == 200
    good.rename(path)
    assert server.ready().complete("the cat", model="one")["choices"]


def test_a_model_that_cannot_be_loaded_is_said_and_ends_the_server(tiny_path: Path) -> None:
    command = [sys.executable, "-m", "narrows", "serve", str(tiny_path), "--port", "0", "--kv-cache-bytes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("narrows: cannot serve tiny: kv_cache_bytes")


def test_two_models_are_two_processes(
    tiny_path: Path, tiny_gguf: Callable[..., Path], start: Callable[..., Server]
) -> None:
    """One dies, and the other answers meanwhile; when the gateway is killed, both go."""
    names = ("--served-model-name", "one", "--served-model-name", "two")
    server = start(tiny_path, tiny_gguf(seed=1), *names, "--threads", "1").ready()
    assert [m["id"] for m in server.client.get("/v1/models").json()["data"]] == ["one", "two"]
    one, two = (server.complete("the cat", model=name)["choices"] for name in ("one", "two"))
    assert one != two
    missing = server.post("/v1/completions", prompt="x")
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")
    os.kill(server.subservers()[0], signal.SIGKILL)
    assert server.complete("the cat", model="two")["choices"] == two
    server.ready()
    assert server.complete("the cat", model="one")["choices"] == one
    left = [Path(f"/proc/{pid}/cmdline") for pid in server.subservers()]
    assert len(left) == 2
    server.process.kill()
    wait(lambda: not any(path.exists() and path.read_bytes() for path in left))  # a zombie's is empty


def test_metrics_count_what_clients_got(tiny: Server) -> None:
    names = ("prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count")
    names += ("inter_token_latency_seconds_count",)
    before = {name: tiny.metric(f"vllm:{name}") for name in names}
    ended = tiny.metric("vllm:request_success_total", finished_reason="length")
    read = tiny.metric("narrows_weight_bytes_total")
    given: dict[str, Any] = {"temperature": 1, "ignore_eos": True}
    usage = [tiny.complete("the cat " * n, max_tokens=5, n=n, **given)["usage"] for n in (1, 2, 3)]
    given |= {"prompt": "the cat", "max_tokens": 3, "stream_options": {"include_usage": True}}
    *chunks, _ = tiny.stream("/v1/completions", **given)
    usage.append(chunks[-1]["usage"])
    num_output = sum(u["completion_tokens"] for u in usage)
    assert num_output == 5 * (1 + 2 + 3) + 3
    assert {name: tiny.metric(f"vllm:{name}") - before[name] for name in names} == {
        "prompt_tokens_total": sum(u["prompt_tokens"] for u in usage),
        "generation_tokens_total": num_output,
        "time_to_first_token_seconds_count": 4,
        "inter_token_latency_seconds_count": num_output - (1 + 2 + 3 + 1),
    }
    assert tiny.metric("vllm:request_success_total", finished_reason="length") - ended == 1 + 2 + 3 + 1
    assert tiny.metric("narrows_weight_bytes_total") > read
    assert tiny.quiet()

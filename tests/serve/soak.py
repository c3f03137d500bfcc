"""A mixed load for as long as wanted: nine in ten requests go well, one leaves early, and some are malformed."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Any

import fuzz
import httpx
from servers import SECONDS, Server, descriptors, memory, wait

NUM_CLIENTS = 8
PATHS = ["/v1/completions", "/v1/completions", "/v1/chat/completions", "/v1/responses"]


@dataclass(frozen=True)
class Result:
    """What became of a load."""

    seconds: float
    answered: int
    left: int  # early, on purpose
    malformed: int
    lost: int  # neither answered nor refused with a reason
    tokens: int  # after the first fifth
    grown_bytes: int  # of resident memory, gateway and engines, after the first fifth
    grown_descriptors: int


def run(server: Server, seconds: float) -> Result:
    """Loads a server of the tiny model for some seconds."""
    end = time.monotonic() + seconds
    counts: dict[str, int] = dict.fromkeys(("answered", "left", "malformed", "lost"), 0)
    lock = threading.Lock()

    def client(seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < end:
            kind = _one(server, rng)
            with lock:
                counts[kind] += 1

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    processes = [server.process.pid, *server.subservers()]
    first = sum(map(descriptors, processes))
    seen: list[tuple[float, int]] = []  # tokens, bytes
    while time.monotonic() < end:
        seen.append((server.metric("vllm:generation_tokens_total"), sum(map(memory, processes))))
        time.sleep(min(1.0, seconds / 10))
    for thread in threads:
        thread.join()
    wait(server.quiet)
    later = seen[len(seen) // 5 :]
    tokens, bytes_ = (later[-1][i] - later[0][i] for i in (0, 1))
    grown = sum(map(descriptors, processes)) - first
    return Result(seconds, **counts, tokens=int(tokens), grown_bytes=int(bytes_), grown_descriptors=grown)


def _one(server: Server, rng: random.Random) -> str:
    chance = rng.random()
    if chance < 0.01:
        host, _, port = server.url.removeprefix("http://").partition(":")
        reply = fuzz.send((host, int(port)), fuzz.plain(rng), SECONDS)
        return "malformed" if reply and all(s < 500 for s in fuzz.statuses(reply)) else "lost"
    path = rng.choice(PATHS)
    limit = "max_output_tokens" if "responses" in path else "max_tokens"
    text = "the cat in the hat " * rng.choice([1, 1, 4, 12]) + str(rng.random())
    body: dict[str, Any] = {"stream": rng.random() < 0.5, "temperature": 1, limit: rng.choice([1, 8, 40])}
    body |= {"messages": [{"role": "user", "content": text}]} if "chat" in path else {}
    body |= {"input": text} if "responses" in path else {"prompt": text} if "chat" not in path else {}
    if "responses" not in path:
        body["n"] = rng.choice([1, 1, 2])
    leaves = chance < 0.11
    timeout = httpx.Timeout(rng.uniform(0.001, 0.2) if leaves else SECONDS, connect=SECONDS)
    data = b""
    try:
        with httpx.stream("POST", server.url + path, json=body, timeout=timeout) as reply:
            for piece in reply.iter_raw():
                data += piece
                if leaves and rng.random() < 0.3:
                    break
    except httpx.HTTPError:
        return "left" if leaves else "lost"
    if leaves:
        return "left"
    ends = (b"[DONE]", b"response.completed", b"response.incomplete", b'"object"')
    return "answered" if reply.status_code == 200 and any(end in data for end in ends) else "lost"

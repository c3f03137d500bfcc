"""The client: sends requests when they are due, whatever became of earlier ones, and notes when pieces come back."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .arrivals import Arrival
from .texts import Texts

try:
    import httpx
except ModuleNotFoundError as error:
    raise ValueError(f"bench serve needs {error.name}: pip install 'narrows[bench]'") from None

CALIBRATION_WORDS = 64


class BenchError(ValueError):
    """A server that cannot be measured."""


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are seconds since the first request was due."""

    due: float
    sent: float = 0
    pieces: list[float] = field(default_factory=list)  # when text came
    end: float = 0
    num_prompt: int = 0  # tokens, as the server counted them
    num_output: int = 0
    error: str | None = None  # a short kind: "HTTP 429", "timeout", ...
    detail: str = ""  # what the server said of it


@dataclass(frozen=True, slots=True)
class Target:
    """A server and what it is asked for."""

    url: str
    model: str
    api_key: str | None = None
    ignore_eos: bool = True  # so that answers have the lengths of the trace; a field of vLLM's that others take too
    timeout: float = 600

    def client(self, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        url = self.url.rstrip("/").removesuffix("/v1") + "/v1/"
        return httpx.AsyncClient(
            base_url=url, headers=headers, limits=limits, timeout=self.timeout, transport=transport, trust_env=False
        )

    def body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        more = {"ignore_eos": True} if self.ignore_eos else {}
        common = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        return {**common, "stream": True, "stream_options": {"include_usage": True}}


async def find_model(client: httpx.AsyncClient, name: str = "") -> tuple[str, str]:
    """The name of a model of a server, the first unless given, and whose it is, by which programs name themselves.

    "" for the latter where a server does not say it of a given name. Raises BenchError when there is no first.
    """
    try:
        reply = await client.get("models")
        reply.raise_for_status()
        found = next(model for model in reply.json()["data"] if name in ("", model["id"]))
        return found["id"], str(found.get("owned_by", ""))
    except (httpx.HTTPError, ValueError, LookupError, TypeError, StopIteration) as error:
        if name:
            return name, ""
        why = str(error) or "it has none"
        raise BenchError(f"{client.base_url}models does not name a model: {why}; give --model-name") from None


async def calibrate(client: httpx.AsyncClient, target: Target, texts: Texts) -> None:
    """Measures how many tokens a word is to this model; also the warm-up. Raises BenchError."""
    texts.tokens_per_word = 1.0
    outcome = Outcome(0)
    prompt = texts.prompt(Arrival(0, CALIBRATION_WORDS, 1), -1)
    await ask(client, target.body(prompt, 2), outcome, time.perf_counter)
    if outcome.error or not outcome.num_prompt:
        why = f"{outcome.error} {outcome.detail}".strip() if outcome.error else "it counts no tokens"
        raise BenchError(f"{client.base_url} does not complete a prompt: {why}")
    texts.tokens_per_word = outcome.num_prompt / CALIBRATION_WORDS


async def run(
    client: httpx.AsyncClient,
    target: Target,
    arrivals: Sequence[Arrival],
    prompts: Sequence[str],
    done: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> list[Outcome]:
    """Sends each request when it is due (open loop) and waits for all; outcomes are in the order of the arrivals.

    `done` is called as each ends.
    """
    bodies = [target.body(prompt, arrival.num_output) for arrival, prompt in zip(arrivals, prompts, strict=True)]
    began = clock()
    outcomes = [Outcome(arrival.at) for arrival in arrivals]

    async def one(body: dict[str, Any], outcome: Outcome) -> None:
        await ask(client, body, outcome, lambda: clock() - began)
        done()

    async with asyncio.TaskGroup() as tasks:
        for body, outcome in zip(bodies, outcomes, strict=True):
            if (wait := outcome.due - (clock() - began)) > 0:
                await sleep(wait)
            tasks.create_task(one(body, outcome))
    return outcomes


async def ask(client: httpx.AsyncClient, body: dict[str, Any], outcome: Outcome, clock: Callable[[], float]) -> None:
    """One streamed completion; whatever goes wrong is the outcome's error."""
    outcome.sent = clock()
    try:
        async with client.stream("POST", "completions", json=body) as reply:
            if reply.status_code != 200:
                outcome.error = f"HTTP {reply.status_code}"
                outcome.detail = (await reply.aread()).decode(errors="replace")[:300]
                return
            async for line in reply.aiter_lines():
                if line.startswith("data:") and not _take(line[5:].strip(), outcome, clock()):
                    break
            else:
                outcome.error = outcome.error or "the stream was cut"
    except httpx.TimeoutException:
        outcome.error = "timeout"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        outcome.error = type(error).__name__
    except (ValueError, LookupError, TypeError, AttributeError):
        outcome.error = "a reply that is no completion"
    finally:
        outcome.end = clock()


def _take(data: str, outcome: Outcome, now: float) -> bool:
    """Notes an event of the stream; False for its last."""
    if data == "[DONE]":
        outcome.num_output = outcome.num_output or len(outcome.pieces)  # of a server that does not count
        if not outcome.num_output:
            outcome.error = "no answer"
        return False
    event = json.loads(data)
    if "error" in event:
        outcome.error = f"error event: {event['error'].get('code') or event['error'].get('type')}"
        return False
    if any(choice.get("text") for choice in event.get("choices", ())):
        outcome.pieces.append(now)
    if usage := event.get("usage"):
        outcome.num_prompt, outcome.num_output = usage["prompt_tokens"], usage["completion_tokens"]
    return True


def errors(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many requests failed, by kind."""
    return dict(Counter(outcome.error for outcome in outcomes if outcome.error))

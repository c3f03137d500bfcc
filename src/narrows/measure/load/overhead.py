"""What HTTP takes: tokens per second through a server beside those of the engine alone, on the same prompts in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from narrows import LLM, SamplingParams

from .arrivals import Arrival
from .client import BenchError, Target, calibrate, errors, find_model, run
from .texts import Texts


def rounds(
    llm: LLM, url: str, *, streams: int, num_prompt: int, num_output: int, num_rounds: int, seed: int
) -> Iterator[dict[str, Any]]:
    """A row a round: output tokens a second of `streams` requests sent at once, to the engine and over HTTP.

    The server must serve the same model. Raises BenchError when a request fails.
    """
    texts = Texts(seed)
    asyncio.run(_calibrate(url, texts))
    arrival = Arrival(0, num_prompt, num_output)
    for number in range(num_rounds):
        fresh = range(number * streams, (number + 1) * streams)  # so that nothing is cached
        prompts = [texts.prompt(arrival, i) for i in fresh]
        params = SamplingParams(temperature=0, max_tokens=num_output, ignore_eos=True)
        began = time.perf_counter()
        num_alone = sum(len(out.outputs[0].token_ids) for out in llm.generate(prompts, params))
        alone = num_alone / (time.perf_counter() - began)
        served = asyncio.run(_served(url, [arrival] * streams, prompts))
        yield {"round": number + 1, "engine": alone, "http": served, "share": served / alone}


def overhead(rows: list[dict[str, Any]]) -> float:
    """The share of the engine's speed that is lost over HTTP; the median of rounds. Below 0 it is noise."""
    return 1 - median(row["share"] for row in rows)


async def _calibrate(url: str, texts: Texts) -> None:
    async with Target(url, "").client() as client:
        await calibrate(client, Target(url, (await find_model(client))[0]), texts)


async def _served(url: str, arrivals: list[Arrival], prompts: list[str]) -> float:
    async with Target(url, "").client() as client:
        outcomes = await run(client, Target(url, (await find_model(client))[0]), arrivals, prompts)
    if failed := errors(outcomes):
        raise BenchError(f"requests failed: {failed}")
    return sum(o.num_output for o in outcomes) / (max(o.end for o in outcomes) - min(o.sent for o in outcomes))

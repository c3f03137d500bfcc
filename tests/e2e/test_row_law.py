"""The row law on a real model: the same ids alone, batched, in chunks, on shared pages, preempted, by any threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from narrows import LLM, SamplingParams, Stack
from narrows.native import PAGE_SIZE
from narrows.schedulers.continuous import Continuous

TOPICS = ["rivers", "bread", "prime numbers", "the sea", "old maps", "a lost key", "winter", "clocks", "glass", "bees"]
OPENINGS = [
    "Write about {}.",
    "The history of {} begins",
    "def {}(x):\n    return",
    "Once, in a town known for {}, there lived",
    "Q: What do you know of {}?\nA:",
]
PROMPTS = [opening.format(topic) * (1 + i % 3) for i, topic in enumerate(TOPICS) for opening in OPENINGS]

Ids = list[list[int]]


def load(path: Path, budget: int = 512, threads: int = 2, context: int = 512, pages: int | None = None) -> LLM:
    stack = Stack(scheduler=Continuous(budget=budget))
    page = 30 * 3 * 64 * 2 * 2 * PAGE_SIZE  # layers, key/value heads, head size, K and V, bytes, tokens
    size = None if pages is None else pages * page
    return LLM(path, stack, num_threads=threads, max_model_len=context, kv_cache_bytes=size)


def together(llm: LLM, prompts: list[str], count: int) -> Ids:
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    return [out.outputs[0].token_ids for out in llm.generate(prompts, params)]


def alone(llm: LLM, prompts: list[str], count: int) -> Ids:
    return [together(llm, [prompt], count)[0] for prompt in prompts]


def batches(llm: LLM, prompts: list[str], count: int) -> Ids:
    return [ids for i in range(0, len(prompts), 8) for ids in together(llm, prompts[i : i + 8], count)]


def check(path: Path, prompts: list[str], count: int, settings: list[tuple[int, int]]) -> None:
    llm = load(path)
    expected = alone(llm, prompts, count)
    assert batches(llm, prompts, count) == expected
    for budget, threads in settings:
        assert batches(load(path, budget, threads), prompts, count) == expected, f"{budget=} {threads=}"


def check_prefix_and_preemption(path: Path, prompts: list[str], count: int) -> None:
    prefix = "A long beginning that all of these share, so that whole pages of it can be reused by the next. " * 8
    prompts = [prefix + prompt for prompt in prompts]
    cold = load(path)
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, prompt_logprobs=0)  # takes no prefix
    expected = [cold.generate(prompt, params)[0].outputs[0].token_ids for prompt in prompts]
    assert cold.ledger.num_cached == 0
    llm = load(path)
    assert alone(llm, prompts, count) == expected
    assert llm.ledger.num_cached >= (len(prompts) - 1) * 2 * PAGE_SIZE
    tight = load(path, context=320, pages=6)
    assert batches(tight, prompts, count) == expected
    assert tight.ledger.num_preemptions > 0


def test_row_law(smollm2_path: Path) -> None:
    check(smollm2_path, PROMPTS[:48:6], 8, [(7, 1), (64, 2)])


def test_row_law_one_token_at_a_time(smollm2_path: Path) -> None:
    prompts = PROMPTS[:3]
    assert together(load(smollm2_path, budget=1, threads=1), prompts, 8) == alone(load(smollm2_path), prompts, 8)


def test_row_law_prefix_and_preemption(smollm2_path: Path) -> None:
    check_prefix_and_preemption(smollm2_path, PROMPTS[:3], 16)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_row_law_long(smollm2_path: Path) -> None:
    check(smollm2_path, PROMPTS, 64, [(budget, threads) for budget in (1, 7, 64, 512) for threads in (1, 2)])
    check_prefix_and_preemption(smollm2_path, PROMPTS, 64)

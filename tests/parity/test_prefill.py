"""Prompts read with other weights than output: a token's row is the same however requests are batched and cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from tiny_models import CONFIGS, hf_arrays

from narrows.checkpoints import open_checkpoint
from narrows.engine import Engine
from narrows.kv.pool import KvPool
from narrows.models import declare
from narrows.native import PAGE_SIZE, NativeModel
from narrows.prefill import DensePrefill
from narrows.sampling import SamplingParams
from narrows.speculation import Speculation
from narrows.stack import Stack
from narrows.types import ForwardBatch, ModelSpec
from narrows.weights import load_weights

LENGTHS = [1, 63, 64, 65, 150]
NUM_OUTPUT = 80
PAGES = 24


class Pair:
    """A tiny model in eight bits for prompts, in two for output."""

    def __init__(self, folder: Path) -> None:
        config = CONFIGS["llama"] | {"max_position_embeddings": 1024}
        (folder / "config.json").write_text(json.dumps(config))
        safetensors.numpy.save_file(hf_arrays(config), folder / "model.safetensors")
        ckpt = open_checkpoint(folder)
        self.spec: ModelSpec
        self.spec, sources = declare(ckpt)
        self.fine, self.coarse = (
            load_weights(ckpt, self.spec, sources, weights, cache=False, num_threads=1) for weights in ("int8", "int2")
        )

    def models(self, num_pages: int = PAGES) -> tuple[NativeModel, NativeModel]:
        coarse = NativeModel(self.spec, self.coarse, num_pages, 1)
        return NativeModel(self.spec, self.fine, num_pages, 1, kv_of=coarse), coarse

    def engine(self, line: str, num_pages: int = PAGES) -> Engine:
        stack = Stack.parse(line)
        return Engine(
            DensePrefill(*self.models(num_pages)),
            KvPool(num_pages, PAGE_SIZE, identity="pair", codec="bf16", output_apart=True),
            stack.scheduler,
            stack.verify,
            vocab_size=self.spec.vocab_size,
            max_model_len=num_pages * PAGE_SIZE,
            speculation=Speculation(stack.draft, stack.pace, {}) if stack.draft else None,
        )

    def alone(self, prompt: list[int], first: int = 0, second: int = 1) -> list[int]:
        """Greedy output, token by token, the prompt read by one of the two models and output by another."""
        models = self.models()
        prompts, outputs = models[first], models[second]
        ids, model, start = list(prompt), prompts, 0
        for _ in range(NUM_OUTPUT):
            n = len(ids) - start
            rows = np.arange(start, len(ids), dtype=np.int32)
            ends, table = np.array([len(ids)], np.int32), np.arange(PAGES, dtype=np.int32)[None]
            cu_seqlens, last = np.array([0, n], np.int32), np.array([n - 1], np.int32)
            batch = ForwardBatch(np.array(ids[start:], np.int32), rows, cu_seqlens, ends, table, last)
            start, model = len(ids), (prompts if start == len(ids) else model)
            ids.append(int(model.forward(batch).logits.argmax()))
            model = outputs
        return ids[len(prompt) :]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 97, n).tolist() for n in LENGTHS]


def answers(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=NUM_OUTPUT)
    requests = [engine.add(prompt, params) for prompt in prompts]
    while engine.requests:
        engine.step()
        engine.check()
    return [request.output for request in requests]


@pytest.mark.parametrize(
    ("line", "num_pages"),
    [
        ("scheduler=continuous", PAGES),
        ("scheduler=continuous:budget=7", PAGES),
        ("scheduler=continuous", 6),  # which do not hold all: some are preempted, and read their output again
        ("draft=ngram:branches=2 pace=fixed", PAGES),
    ],
)
def test_output_is_that_of_a_request_alone(pair: Pair, prompts: list[list[int]], line: str, num_pages: int) -> None:
    expected = [pair.alone(prompt) for prompt in prompts]
    engine = pair.engine(line, num_pages)
    assert answers(engine, prompts) == expected
    assert bool(engine.ledger.num_preemptions) == (num_pages == 6)
    for which in ((0, 0), (1, 1)):  # both models have a part in it
        assert [pair.alone(prompt, *which) for prompt in prompts] != expected


def test_a_next_turn_does_not_find_what_output_wrote(pair: Pair, prompts: list[list[int]]) -> None:
    """The answer of one turn is prompt in the next, and is read with the prompt's weights."""
    engine = pair.engine("scheduler=continuous")
    first = prompts[-1]
    turn = first + answers(engine, [first])[0] + prompts[1]
    assert answers(engine, [turn]) == [pair.alone(turn)]
    assert engine.ledger.num_cached == len(first) // PAGE_SIZE * PAGE_SIZE


def test_embeddings_are_of_the_prompts_model_beside_whatever_is_written(pair: Pair, prompts: list[list[int]]) -> None:
    def embeddings(engine: Engine, beside: list[list[int]]) -> list[bytes]:
        for prompt in beside:
            engine.add(prompt, SamplingParams(temperature=0, max_tokens=NUM_OUTPUT))
        for _ in beside:  # so that prompts are read in the steps of output
            engine.step()
        requests = [engine.add(prompt, SamplingParams(), embed=True) for prompt in prompts]
        while engine.requests:
            engine.step()
        return [request.pooled.mean.tobytes() for request in requests]

    fine = pair.engine("scheduler=continuous")
    fine.model = pair.models()[0]
    alone = embeddings(fine, [])
    assert embeddings(pair.engine("scheduler=continuous:budget=40"), prompts[:2]) == alone


def test_both_models_must_have_the_same_pages(pair: Pair) -> None:
    coarse = NativeModel(pair.spec, pair.coarse, 8, 1)
    with pytest.raises(ValueError, match="kv_of"):
        NativeModel(pair.spec, pair.fine, 9, 1, kv_of=coarse)


def test_a_real_model_chooses_its_first_token_as_the_unmodified_one(smollm2_path: Path) -> None:
    from narrows import LLM

    params: Any = SamplingParams(temperature=0, max_tokens=8, logprobs=2, ignore_eos=True)
    outputs = [
        LLM(smollm2_path, stack=line, num_threads=1, max_model_len=256).generate("The capital of France is", params)
        for line in ("weights=int3", "weights=int3 prefill=dense", "weights=auto")
    ]
    coarse, both, plain = (output[0].outputs[0].logprobs for output in outputs)
    assert coarse and both and plain
    assert both[0] == plain[0] != coarse[0]
    assert both[1] != plain[1]

"""Pooled hidden states, on a model whose hidden state is a hash of the tokens before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_model import FakeModel, drain, expected, logits_after, make_engine, random_prompt

from narrows.engine import ContextLengthError, Engine
from narrows.sampling import SamplingParams
from narrows.schedulers.continuous import Continuous
from narrows.types import F32, ForwardBatch, ForwardOutput

RNG = np.random.default_rng(11)
PROMPTS = [random_prompt(RNG, 1, 60) for _ in range(10)]
GREEDY = SamplingParams(temperature=0, max_tokens=15)


class HiddenModel(FakeModel):
    """Its hidden states are what it would give as logits."""

    num_final = 0

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        if batch.final_rows is None:
            return super().forward(batch)
        self.num_final += len(batch.final_rows)
        rows = np.union1d(batch.logit_rows, batch.final_rows).astype(np.int32)
        out = super().forward(replace(batch, logit_rows=rows))
        picked = [out.logits[np.searchsorted(rows, wanted)] for wanted in (batch.logit_rows, batch.final_rows)]
        return replace(out, logits=picked[0], final=picked[1])


def hidden_engine(**options: object) -> Engine:
    engine = make_engine(**options)  # type: ignore[arg-type]
    engine.model = engine.target.model = HiddenModel(engine.pool.num_pages, engine.pool.page_size)
    return engine


def mean(prompt: list[int]) -> F32:
    return np.mean([logits_after(np.array(prompt[: i + 1])) for i in range(len(prompt))], 0, np.float64).astype("f4")


def embed(engine: Engine, prompts: list[list[int]]) -> list[F32]:
    requests = [engine.add(prompt, GREEDY, embed=True) for prompt in prompts]
    found = {result.request.id: result for result in drain(engine)}
    assert all(found[r.id].finish_reason == "stop" and not r.output for r in requests)
    return [r.pooled.mean for r in requests]


def test_an_embedding_is_the_mean_over_the_prompt() -> None:
    for prompt, vector in zip(PROMPTS, embed(hidden_engine(), PROMPTS), strict=True):
        assert vector.dtype == np.float32
        assert np.allclose(vector, mean(prompt), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("options", [{"budget": 1}, {"budget": 7}, {"budget": 20, "max_num_seqs": 2}])
def test_same_bits_however_it_is_cut_and_beside_whatever(options: dict[str, int]) -> None:
    alone = [embed(hidden_engine(), [prompt])[0] for prompt in PROMPTS]
    engine = hidden_engine(scheduler=Continuous(**options))
    answers = [engine.add(prompt, GREEDY) for prompt in PROMPTS[:4]]
    together = embed(engine, PROMPTS)
    assert [v.tobytes() for v in together] == [v.tobytes() for v in alone]
    assert [a.output for a in answers] == [expected(p, 15) for p in PROMPTS[:4]]


def test_same_bits_when_preempted_and_no_row_is_pooled_twice() -> None:
    alone = [embed(hidden_engine(), [prompt])[0] for prompt in PROMPTS]
    engine = hidden_engine(num_pages=9, max_model_len=72, scheduler=Continuous(budget=5))
    for prompt in PROMPTS[:3]:
        engine.add(prompt[:8], replace(GREEDY, max_tokens=40))
    together = embed(engine, PROMPTS)
    assert engine.ledger.num_preemptions > 0
    assert [v.tobytes() for v in together] == [v.tobytes() for v in alone]
    assert engine.model.num_final == sum(map(len, PROMPTS))  # type: ignore[attr-defined]


def test_nothing_is_missed_in_the_prefix_cache_and_answers_find_what_was_read() -> None:
    engine, prompt = hidden_engine(), list(range(40))
    first, second = embed(engine, [prompt])[0], embed(engine, [prompt])[0]
    assert first.tobytes() == second.tobytes()
    request = engine.add(prompt, GREEDY)
    drain(engine)
    assert request.num_cached == 32 and request.output == expected(prompt, 15)


def test_what_does_not_fit_is_refused_and_what_is_aborted_leaves_no_pages() -> None:
    engine = hidden_engine(scheduler=Continuous(budget=8))
    with pytest.raises(ContextLengthError):
        engine.add([1] * 600, GREEDY, embed=True)
    request = engine.add([1] * 100, GREEDY, embed=True)
    engine.step()
    assert engine.abort(request.id)
    engine.check()
    assert engine.pool.num_free == engine.pool.num_pages

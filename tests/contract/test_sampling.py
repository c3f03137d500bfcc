"""Sampling: the table of parameters, the order of what is done to logits, and the draw."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from narrows import _native
from narrows.sampling import (
    CounterRng,
    ParamError,
    SamplingParams,
    adjust,
    adjusts,
    child_seed,
    choose,
    markdown_table,
    table,
    token_logprobs,
)

NUMERIC = {"number", "integer"}
BAD: list[Any] = [math.nan, math.inf, -math.inf, "1", b"1", [1], {"a": 1}, True, object(), 1 << 400, -(1 << 400)]


def distribution(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """[V] probabilities by definition, in float64."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    p = np.exp((logits[order].astype(np.float64) - logits.max()) / temperature)
    keep = np.ones(len(p), bool)
    if top_k > 0:
        keep[top_k:] = False
    if top_p < 1:
        q = np.where(keep, p, 0) / p[keep].sum()
        keep &= np.cumsum(q) - q < top_p
    keep &= p / p[0] >= min_p
    out = np.zeros(len(p))
    out[order] = np.where(keep, p, 0) / p[keep].sum()
    return out


@pytest.mark.parametrize("field", table(), ids=lambda f: f.name)
def test_every_field_is_checked_and_documented(field: Any) -> None:
    SamplingParams(**{field.name: getattr(SamplingParams(), field.name)})
    assert field.metadata["doc"].endswith(".")
    assert f"`{field.name}`" in markdown_table()
    for value in BAD:
        if field.metadata["kind"] in ("boolean",) and value is True:
            continue
        if field.name in ("stop", "stop_token_ids") and value in ("1", [1]):
            continue
        with pytest.raises(ParamError) as error:
            SamplingParams(**{field.name: value})
        assert error.value.field == field.name
        assert field.name in str(error.value)
        assert len(str(error.value)) < 200
        json.dumps({"error": error.value.message}, allow_nan=False)


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("temperature", [-1, -1e-9, 101], [0, 1e-9, 2, 100]),
        ("top_p", [0, -0.1, 1.01], [1e-6, 1]),
        ("min_p", [-0.1, 1.01], [0, 1]),
        ("top_k", [-2, 1.5, None], [-1, 0, 1, 1 << 31]),
        ("repetition_penalty", [0, -1], [0.5, 2]),
        ("presence_penalty", [-2.1, 2.1], [-2, 2]),
        ("n", [0, 129], [1, 128]),
        ("seed", [1 << 64, 0.5], [None, 0, -1, (1 << 64) - 1]),
        ("max_tokens", [0, -1], [None, 1]),
        ("logprobs", [-1, 21], [None, 0, 20]),
        ("logit_bias", [{"x": 1}, {-1: 1}, {1: math.nan}, {1: 101}, {1: "2"}, {1.5: 1}, [1]], [None, {}, {"12": -100}]),
        ("stop", ["", [""], ["a"] * 65, "x" * 1025, [1]], [None, "END", ["a", "b"]]),
        ("stop_token_ids", [[-1], [1.5], [True], 3], [None, [], [0, 5]]),
    ],
)
def test_ranges(name: str, bad: list[Any], good: list[Any]) -> None:
    for value in bad:
        with pytest.raises(ParamError, match=name):
            SamplingParams(**{name: value})
    for value in good:
        SamplingParams(**{name: value})


def test_fields_that_depend_on_each_other() -> None:
    with pytest.raises(ParamError, match=r"min_tokens is 5; it must be at most max_tokens \(4\)"):
        SamplingParams(min_tokens=5, max_tokens=4)
    with pytest.raises(ParamError, match="stop needs text"):
        SamplingParams(stop="x", detokenize=False)


def test_ids_are_held_against_the_vocabulary() -> None:
    SamplingParams(logit_bias={9: 1}, stop_token_ids=[9]).check_vocabulary(10)
    with pytest.raises(ParamError, match="logit_bias holds token 10, but the vocabulary ends at 9"):
        SamplingParams(logit_bias={10: 1}).check_vocabulary(10)
    with pytest.raises(ParamError, match="stop_token_ids holds token 10"):
        SamplingParams(stop_token_ids=[10]).check_vocabulary(10)


def test_repetition_divides_positive_logits_and_multiplies_negative_ones() -> None:
    logits = np.array([[-2.0, 1.0, 3.0]], np.float32)
    out = adjust(logits, [0, 2], 1, SamplingParams(repetition_penalty=1.5), ())
    assert out.tolist() == [[-3.0, 1.0, 2.0]]
    assert logits.tolist() == [[-2.0, 1.0, 3.0]]
    assert not adjusts(SamplingParams(repetition_penalty=1.0), 0)


def test_presence_and_frequency_see_the_output_only() -> None:
    logits = np.zeros((1, 4), np.float32)
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    assert adjust(logits, [0, 0, 1, 2, 2], 2, params, ()).tolist() == [[0, -0.75, -1.0, 0]]


def test_bias_comes_after_penalties_and_the_mask_of_ends_last() -> None:
    logits = np.array([[2.0, 0.0, 0.0]], np.float32)
    params = SamplingParams(repetition_penalty=2.0, logit_bias={0: 1.0, 1: 100}, min_tokens=2)
    assert adjust(logits, [0], 1, params, {1}).tolist() == [[2.0, -math.inf, 0.0]]
    assert adjust(logits, [0, 2, 2], 1, params, {1}).tolist()[0][:2] == [2.0, 100.0]


def test_rows_of_a_draft_see_what_comes_before_them() -> None:
    logits = np.zeros((3, 5), np.float32)
    out = adjust(logits, [0, 3, 4], 1, SamplingParams(presence_penalty=1), ())
    assert out.tolist() == [[0] * 5, [0, 0, 0, -1, 0], [0, 0, 0, -1, -1]]


SETTINGS = [(1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.3, 0, 0.8, 0.0), (1.0, 0, 1.0, 0.1), (0.9, 20, 0.9, 0.05)]


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), SETTINGS)
@pytest.mark.parametrize("size", [1, 33, 5000])
def test_draw_is_the_inverse_of_the_distribution(
    temperature: float, top_k: int, top_p: float, min_p: float, size: int
) -> None:
    rng = np.random.default_rng(size)
    logits = (rng.standard_normal(size) * 3).astype(np.float32)
    p = distribution(logits, temperature, top_k, top_p, min_p)
    order = np.lexsort((np.arange(size), -logits))
    edges = np.cumsum(p[order])
    for u in np.linspace(0, 0.9999, 101):
        token = _native.sample(logits, temperature, top_k, top_p, min_p, u)
        place = int(np.where(order == token)[0][0])
        assert p[token] > 0
        assert edges[place] >= u - 1e-5
        assert edges[place] - p[token] <= u + 1e-5


def test_draws_follow_the_distribution() -> None:
    logits = np.array([1.0, 0.5, 0.0, -1.0, -math.inf], np.float32)
    params, count = SamplingParams(temperature=0.8), 20_000
    tokens = [choose(logits[None], params, CounterRng(5, i), 0) for i in range(count)]
    expected = distribution(logits, 0.8, 0, 1, 0)[:4] * count
    observed = np.bincount(tokens, minlength=5)
    assert observed[4] == 0
    assert ((observed[:4] - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees, p = 0.001


def test_cold_ties_and_odd_rows() -> None:
    rng = CounterRng(0, 0)
    logits = np.array([[0, 5, 5, 1]], np.float32)
    for temperature in (0, 1e-9, 1e-6):
        assert choose(logits, SamplingParams(temperature=temperature), rng, 0) == 1
    assert choose(logits, SamplingParams(temperature=1e-5), rng, 0) in (1, 2)
    assert _native.sample(logits[0], 1e-40, 0, 1.0, 0.0, 0.99) == 1
    masked = np.full((1, 40), -np.inf, np.float32)
    assert _native.argmax(masked)[0] == 0
    assert _native.sample(masked[0], 1.0, 0, 1.0, 0.0, 0.5) == 0
    for at in (0, 17, 39):
        row = masked.copy()
        row[0, at] = -3
        assert _native.argmax(row)[0] == at
        assert _native.sample(row[0], 1.0, 0, 1.0, 0.0, 1 - 2**-53) == at
        row = np.full((1, 40), np.nan, np.float32)
        row[0, at] = -3
        assert _native.argmax(row)[0] == at
        assert _native.sample(row[0], 1.0, 0, 1.0, 0.0, 1 - 2**-53) == at
        row[0, at] = np.inf
        assert _native.sample(row[0], 1.0, 0, 1.0, 0.0, 0.5) == at
    assert _native.argmax(np.full((1, 40), np.nan, np.float32))[0] == 0


@pytest.mark.parametrize("size", [1, 15, 16, 17, 1000, 50_000])
def test_native_selection_agrees_with_numpy(size: int) -> None:
    logits = np.random.default_rng(size).integers(-40, 40, (3, size)).astype(np.float32) / 4
    assert _native.argmax(logits).tolist() == logits.argmax(axis=1).tolist()
    exact = np.log(np.exp(logits.astype(np.float64)).sum(axis=1))
    assert _native.log_sum_exp(logits) == pytest.approx(exact, abs=3e-7)
    k = min(size, 20)
    ids, values = _native.top_k(logits, k)
    for row, i, v in zip(logits, ids, values, strict=True):
        order = np.argsort(-row, kind="stable")[:k]
        assert i.tolist() == order.tolist()
        assert v.tolist() == row[order].tolist()


def test_random_numbers_are_keyed_by_seed_and_position() -> None:
    assert CounterRng(3, 10).uniform(2) == CounterRng(3, 12).uniform(0)
    assert CounterRng(-1, 0).uniform(0) == CounterRng((1 << 64) - 1, 0).uniform(0)
    draws = np.array([[CounterRng(s, p).uniform(0) for p in range(200)] for s in range(50)])
    assert draws.min() >= 0 and draws.max() < 1
    assert len(np.unique(draws)) == draws.size
    assert abs(draws.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.04
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 0.04


def test_answers_have_seeds_of_their_own() -> None:
    seeds = {child_seed(s, i) for s in range(20) for i in range(20)}
    assert len(seeds) == 400
    assert child_seed(7, 0) == 7


def test_logprobs_and_ranks() -> None:
    logits = np.array([[0, 1, 2, 2], [3, 0, 0, 0]], np.float32)
    first, second = token_logprobs(logits, [1, 0], 2)
    norm = math.log(sum(math.exp(x) for x in (0, 1, 2, 2)))
    assert (first.token, first.rank) == (1, 3)
    assert first.logprob == pytest.approx(1 - norm)
    assert [t for t, _ in first.top] == [2, 3]
    assert first.top[0][1] == pytest.approx(2 - norm)
    assert (second.rank, second.top[0][0]) == (1, 0)
    assert token_logprobs(logits, [1, 0], 0)[0].top == []

"""Intervals and tests of the quality suite against scipy, statsmodels and what is known of synthetic data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.proportion import proportion_confint

from narrows.measure.quality.base import Metric
from narrows.measure.quality.gates import judge
from narrows.measure.quality.statistics import mcnemar, proportion_interval, statistic, summarise

rng = np.random.default_rng(7)
MEAN, PASS, PPL = (
    Metric("x", "lower"),
    Metric("ok", "higher", "pass"),
    Metric("perplexity", "lower", "perplexity", "nll", "w"),
)


def records(**columns: Any) -> list[dict[str, Any]]:
    n = len(next(iter(columns.values())))
    return [{"id": str(i)} | {k: v[i] for k, v in columns.items()} for i in range(n)]


def test_interval_of_a_mean_is_scipys() -> None:
    x = rng.exponential(size=80)
    got = summarise(MEAN, records(x=x))
    want = bootstrap((x,), np.mean, n_resamples=20000, rng=1).confidence_interval
    assert got["value"] == pytest.approx(x.mean())
    assert got["interval"] == pytest.approx((want.low, want.high), rel=0.02)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    covered = 0
    for _ in range(60):
        low, high = summarise(MEAN, records(x=rng.normal(3, 1, 40)))["interval"]
        covered += low <= 3 <= high
    assert 51 <= covered <= 60  # 57 expected; fewer than 51 has a probability of 0.004


def test_paired_difference_is_sharper_than_two_averages() -> None:
    hard = rng.normal(0, 10, 100)
    a, b = hard + rng.normal(0.5, 0.2, 100), hard
    got = summarise(MEAN, records(x=a), list(reversed(records(x=b))))
    low, high = got["difference"]["interval"]
    want = bootstrap((a - b,), np.mean, n_resamples=20000, rng=1).confidence_interval
    assert got["difference"]["value"] == pytest.approx((a - b).mean())
    assert (low, high) == pytest.approx((want.low, want.high), rel=0.05)
    assert 0 < low < high < got["interval"][1] - got["interval"][0]


def test_perplexity_is_weighted_and_compared_as_a_ratio() -> None:
    nll, w = rng.uniform(2, 3, 20), rng.integers(1, 9, 20)
    got = summarise(PPL, records(nll=nll + 0.01, w=w), records(nll=nll, w=w))
    assert got["baseline"] == pytest.approx(np.exp((nll * w).sum() / w.sum()))
    assert got["ratio"]["value"] == pytest.approx(np.exp(0.01))
    assert got["ratio"]["interval"] == pytest.approx((np.exp(0.01),) * 2)
    assert judge("ppl", got) == {"gate": "ratio <= 1.02", "passed": True}


@pytest.mark.parametrize(("kind", "reduce"), [("p99", lambda x: np.percentile(x, 99)), ("max", np.max)])
def test_tails_are_over_the_numbers_of_all_records(kind: str, reduce: Any) -> None:
    each = [rng.exponential(size=n).tolist() for n in (5, 50, 200)]
    tail = statistic(Metric("t", "lower", kind, "each"), records(each=each))
    assert tail(np.arange(3)) == pytest.approx(reduce(np.concatenate(each)))
    assert tail(np.array([[0, 0, 1], [2, 2, 2]])).shape == (2,)


@pytest.mark.parametrize("n", [10, 30, 200])
def test_mcnemar_is_that_of_statsmodels(n: int) -> None:
    a, b = rng.random(n) < 0.6, rng.random(n) < 0.7
    table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
    assert mcnemar(a.tolist(), b.tolist()) == pytest.approx(reference_mcnemar(table, exact=True).pvalue)


def test_mcnemar_without_disagreement() -> None:
    assert mcnemar([True, False], [True, False]) == 1.0


def test_passes_fail_the_gate_only_when_they_are_surely_fewer() -> None:
    always = [True] * 12
    worse = summarise(PASS, records(ok=[False] * 8 + [True] * 4), records(ok=always))
    assert worse["p_value"] == pytest.approx(2 * 0.5**8)
    assert judge("gsm8k", worse) == {"gate": "not worse at p < 0.05", "passed": False}
    unlucky = summarise(PASS, records(ok=[False] * 3 + [True] * 9), records(ok=always))
    assert judge("gsm8k", unlucky)["passed"]  # type: ignore[index]
    assert judge("gsm8k", summarise(PASS, records(ok=always))) is None


def test_all_passes_are_not_certainty() -> None:
    assert summarise(PASS, records(ok=[True] * 10))["interval"] == pytest.approx(
        proportion_confint(10, 10, method="wilson"), abs=1e-12
    )
    assert proportion_interval(0, 10)[1] > 0.2


def test_records_without_a_figure_are_left_out() -> None:
    some = [{"id": "a", "x": 1.0}, {"id": "b"}, {"id": "c", "x": 3.0}]
    assert summarise(MEAN, some)["n"] == 2
    assert summarise(MEAN, [{"id": "b"}]) == {}
    assert summarise(MEAN, [{"id": "a", "x": 1.0}])["interval"] is None

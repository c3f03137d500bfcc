"""What records say: each figure with an interval, and the paired comparison of candidate and baseline.

Items are what is drawn, so items are resampled: the tokens of one window are not independent of one another. Candidate
and baseline met the same items, so their difference is taken item by item, which is far sharper than two averages.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import Metric, Record

Index = npt.NDArray[np.intp]  # [..., n] of records
Statistic = Callable[[Index], npt.NDArray[np.float64]]  # of the records at index [..., n]: [...]

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 0


def statistic(metric: Metric, records: Sequence[Record], key: str = "") -> Statistic:
    """How `metric` reduces any choice of `records`, from what they hold under `key` (the metric's own when empty)."""
    key = key or metric.key or metric.name
    if metric.kind in ("p99", "max"):
        lists = [np.asarray(r[key], np.float64) for r in records]
        q = 99 if metric.kind == "p99" else 100

        def tail(index: Index) -> npt.NDArray[np.float64]:
            rows = index.reshape(-1, index.shape[-1])
            return np.array([np.percentile(np.concatenate([lists[i] for i in row]), q) for row in rows]).reshape(
                index.shape[:-1]
            )

        return tail
    weights = np.array([r[metric.weight] if metric.weight else 1 for r in records], np.float64)
    sums = np.array([r[key] for r in records], np.float64) * weights

    def mean(index: Index) -> npt.NDArray[np.float64]:
        return sums[index].sum(-1) / weights[index].sum(-1)

    return (lambda index: np.exp(mean(index))) if metric.kind == "perplexity" else mean


def interval(of: Statistic, n: int) -> tuple[float, float] | None:
    """Bootstrap interval over n records (BCa: Efron 1987), or None for fewer than two, which say nothing of spread.

    Where all resamples are alike BCa is not defined, and the percentiles of the resamples are given.
    """
    from scipy.stats import bootstrap

    if n < 2:
        return None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of degenerate data, which is dealt with here
        result = bootstrap(
            (np.arange(n),),
            lambda index, axis=-1: of(np.moveaxis(index, axis, -1)),
            n_resamples=RESAMPLES,
            batch=100,
            vectorized=True,
            confidence_level=CONFIDENCE,
            rng=SEED,
        )
    low, high = map(float, result.confidence_interval)
    if not np.isfinite(low + high):
        low, high = np.percentile(result.bootstrap_distribution, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
    return float(low), float(high)


def proportion_interval(passed: int, n: int) -> tuple[float, float]:
    """Wilson's interval (1927) of a share: all alike, outcomes have no spread to resample but are not certain."""
    from scipy.stats import binomtest

    low, high = binomtest(passed, n).proportion_ci(CONFIDENCE, "wilson")
    return float(low), float(high)


def mcnemar(candidate: Sequence[bool], baseline: Sequence[bool]) -> float:
    """Two-sided p-value of McNemar's exact test: would a fair coin decide this unevenly who passes where one fails?"""
    from scipy.stats import binomtest

    lost = sum(b and not c for c, b in zip(candidate, baseline, strict=True))
    won = sum(c and not b for c, b in zip(candidate, baseline, strict=True))
    return float(binomtest(lost, lost + won).pvalue) if lost + won else 1.0


def summarise(metric: Metric, records: Sequence[Record], baseline: Sequence[Record] | None = None) -> dict[str, Any]:
    """A metric over the candidate's records and, paired by item, the baseline's; empty when no record has it.

    `value` and `interval` are the candidate's. With a baseline: `baseline`, and `difference` (candidate - baseline) or,
    for perplexity, `ratio` (candidate / baseline) with their intervals; `p_value` for pass metrics.
    """
    key = metric.key or metric.name
    mine = {r["id"]: r for r in records if r.get(key) is not None}
    theirs = {r["id"]: r for r in baseline if r.get(key) is not None} if baseline is not None else None
    if theirs is None and metric.baseline:
        theirs = {id: {**r, key: r[metric.baseline]} for id, r in mine.items()}
    ids = [id for id in mine if theirs is None or id in theirs]
    if not ids:
        return {}
    everything = np.arange(len(ids))
    a = statistic(metric, [mine[id] for id in ids])
    result: dict[str, Any] = {"metric": metric.name, "better": metric.better, "kind": metric.kind, "n": len(ids)}
    result |= _estimate(a, everything, metric, [mine[id] for id in ids])
    if theirs is None:
        return result
    b = statistic(metric, [theirs[id] for id in ids])
    result["baseline"] = float(b(everything))
    if metric.kind == "perplexity":
        result["ratio"] = _estimate(lambda index: a(index) / b(index), everything)
    else:
        result["difference"] = _estimate(lambda index: a(index) - b(index), everything)
    if metric.kind == "pass":
        result["p_value"] = mcnemar([bool(mine[id][key]) for id in ids], [bool(theirs[id][key]) for id in ids])
    return result


def _estimate(
    of: Statistic, index: Index, metric: Metric | None = None, records: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    value = float(of(index))
    if metric is not None and metric.kind == "pass" and value in (0, 1):
        bounds: tuple[float, float] | None = proportion_interval(round(value * len(records)), len(records))
    elif metric is not None and metric.kind == "max":
        bounds = None  # the largest of a sample is no estimate of anything that could be resampled
    else:
        bounds = interval(of, len(index))
    return {"value": value, "interval": bounds}

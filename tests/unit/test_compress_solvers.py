"""Solvers against brute force, and each other: how many weights stay, what they lose, what quantising adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from narrows.compress import SOLVERS
from narrows.compress.allocate import Cost, allocate, measure
from narrows.compress.base import relative_loss
from narrows.compress.diagnose import RHOS, epsilon
from narrows.compress.grid import Grid
from narrows.compress.linear import inverse_factor
from narrows.compress.pattern import Pattern
from narrows.methods import build

EXACT = Grid(bits=16)


class Floats(Grid):
    """No rounding at all, so that what a solver does can be compared with algebra."""

    has_scales, zero, dtype = False, 0, np.float32  # type: ignore[assignment]

    def encode(self, weights: Any, scale: Any) -> Any:
        return weights

    def decode(self, codes: Any, scale: Any) -> Any:
        return codes


def problem(rows: int = 48, cols: int = 256, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Weights, and the Hessian of inputs that depend on one another and differ in size."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((cols, cols)) * np.exp(rng.standard_normal(cols)) / np.sqrt(cols)
    inputs = rng.standard_normal((4 * cols, cols)) @ mix
    w = rng.standard_normal((rows, cols)).astype(np.float32)
    return w, (2 / len(inputs) * inputs.T @ inputs).astype(np.float32)


def solve(name: str, w: np.ndarray, h: np.ndarray, pattern: str, ratio: float = 0.5, grid: Grid = EXACT) -> Any:
    solver = build("solver", name, SOLVERS)
    return solver.solve(w, solver.prepare(h), Pattern.parse(pattern, ratio), grid)


def loss(name: str, w: np.ndarray, h: np.ndarray, pattern: str, grid: Grid = EXACT) -> float:
    return relative_loss(w, solve(name, w, h, pattern, grid=grid).weights(grid), h)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("pattern", ["2:4", "4:8", "8:16", "16:32", "1:4"])
@pytest.mark.parametrize("grid", [EXACT, Grid(4, 32)], ids=str)
def test_every_span_keeps_as_many_as_the_pattern_says(name: str, pattern: str, grid: Grid) -> None:
    keep, span = map(int, pattern.split(":"))
    solved = solve(name, *problem(), pattern, grid=grid)
    assert (solved.mask.reshape(48, -1, span).sum(-1) == keep).all()
    assert (solved.weights(grid)[~solved.mask] == 0).all()
    assert (solved.codes[~solved.mask] == grid.zero).all()


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.77])
def test_unstructured_prunes_the_share_asked_for(name: str, ratio: float) -> None:
    assert solve(name, *problem(), "unstructured", ratio).mask.mean() == pytest.approx(1 - ratio, abs=0.003)


@pytest.mark.parametrize("pattern", ["2:4", "8:16", "unstructured"])
def test_sparsegpt_loses_less_than_wanda_and_wanda_less_than_magnitude(pattern: str) -> None:
    w, h = problem()
    kept = solve("wanda", w, np.eye(len(h), dtype=np.float32), pattern).weights(EXACT)
    magnitude = relative_loss(w, kept, h)
    assert loss("sparsegpt", w, h, pattern) < 0.9 * loss("wanda", w, h, pattern) < 0.9 * magnitude


def obs(w: np.ndarray, h: np.ndarray, count: int) -> np.ndarray:
    """Optimal brain surgeon on one row, in full: the least salient weight goes, all others make up for it, repeat."""
    w, left = w.astype(np.float64), list(range(len(w)))
    inverse = np.linalg.inv(h.astype(np.float64) + 0.01 * np.diag(h).mean() * np.eye(len(h)))
    for _ in range(count):
        q = min(left, key=lambda i: w[i] ** 2 / inverse[i, i])
        w -= w[q] / inverse[q, q] * inverse[:, q]
        inverse -= np.outer(inverse[:, q], inverse[q]) / inverse[q, q]
        left.remove(q)
        w[q] = 0
    return w.astype(np.float32)


def test_sparsegpt_is_near_the_optimal_brain_surgeon_that_it_approximates() -> None:
    w, h = problem(rows=16, cols=64)
    best = np.stack([obs(row, h, 32) for row in w])
    magnitude = np.where(np.abs(w) >= np.median(np.abs(w), axis=1, keepdims=True), w, 0)
    surgeon, ours, plain = (
        relative_loss(w, best, h),
        loss("sparsegpt", w, h, "unstructured"),
        relative_loss(w, magnitude, h),
    )
    assert surgeon < plain
    assert ours < 0.5 * (surgeon + plain)


def test_one_pruned_column_is_made_up_for_exactly() -> None:
    """With one weight of a row gone, what OBS leaves is the least squares solution on the others."""
    w = np.random.default_rng(0).uniform(0.5, 1.5, (1, 64)).astype(np.float32)
    h = (0.5 ** np.abs(np.subtract.outer(np.arange(64), np.arange(64)))).astype(np.float32)
    w[0, 0] = 1e-2  # the first column is the one to go: all others can answer for it
    solved = solve("sparsegpt:damp=1e-7", w, h, "unstructured", ratio=1 / 64, grid=Floats(16))
    assert not solved.mask[0, 0]
    expected = w[0, 1:] + np.linalg.solve(h[1:, 1:].astype(np.float64), h[1:, 0].astype(np.float64)) * w[0, 0]
    np.testing.assert_allclose(solved.weights(Floats(16))[0, 1:], expected, rtol=1e-4, atol=1e-6)
    assert np.abs(expected - w[0, 1:]).max() > 1e-3


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("pattern", ["2:4", "unstructured"])
def test_pruning_and_quantising_in_one_pass_loses_less_than_one_after_the_other(bits: int, pattern: str) -> None:
    w, h = problem()
    grid = Grid(bits, 32)
    pruned = solve("sparsegpt", w, h, pattern)
    rounded = np.empty_like(w)
    for g in range(0, w.shape[1], 32):
        part = pruned.weights(EXACT)[:, g : g + 32]
        scale = grid.scale(part.T, pruned.mask[:, g : g + 32].T)[:, None]
        rounded[:, g : g + 32] = grid.decode(grid.encode(part, scale), scale) * pruned.mask[:, g : g + 32]
    assert loss("sparsegpt", w, h, pattern, grid) < relative_loss(w, rounded, h)


def test_a_dead_input_loses_its_weights_and_disturbs_nothing() -> None:
    w, h = problem()
    h[7], h[:, 7] = 0, 0
    kept = solve("sparsegpt", w, h, "dense", grid=Floats(16)).weights(Floats(16))
    assert (kept[:, 7] == 0).all()
    np.testing.assert_array_equal(np.delete(kept, 7, 1), np.delete(w, 7, 1))


@pytest.mark.parametrize("cols", [1, 100, 300, 1100])
def test_inverse_factor_is_the_cholesky_factor_of_the_inverse(cols: int) -> None:
    _, h = problem(cols=cols)
    factor, dead = inverse_factor(h, 0.01)
    damped = h.astype(np.float64) + 0.01 * np.diag(h).astype(np.float64).mean() * np.eye(cols)
    assert not dead.any()
    assert (np.tril(factor, -1) == 0).all()
    np.testing.assert_allclose(factor.T @ factor, np.linalg.inv(damped), rtol=1e-3, atol=1e-4)


def test_inputs_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        inverse_factor(np.full((4, 4), np.nan, np.float32), 0.01)


def test_epsilon_is_zero_for_the_same_inputs_and_grows_with_the_difference() -> None:
    _, h = problem(cols=64)
    assert max(epsilon(h, h)) < 1e-3
    np.testing.assert_allclose(epsilon(h, 1.5 * h), [0.5] * len(RHOS), rtol=1e-3)
    assert epsilon(h, problem(cols=64, seed=1)[1])[3] > 0.3


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_codes_are_within_half_a_step_of_what_is_not_clipped(bits: int) -> None:
    grid, w = Grid(bits, 32), np.random.default_rng(0).standard_normal((32, 40)).astype(np.float32)
    scale = grid.scale(w, np.ones(w.shape, bool))
    codes = grid.encode(w, scale)
    assert codes.max() < 1 << bits
    inside = (codes > 0) & (codes < (1 << bits) - 1)
    error = np.abs(grid.decode(codes, scale) - w) / np.abs(scale)
    assert error[inside].max() <= 0.501
    nothing = np.zeros(1, np.float32)
    assert grid.decode(grid.encode(nothing, nothing), nothing) == 0


def test_shares_are_spent_where_they_cost_least_and_add_up() -> None:
    w, h = problem()
    easy = np.where(np.random.default_rng(0).random(w.shape) < 0.6, 1e-3 * w, w)  # most of it hardly matters
    solver = build("solver", "sparsegpt", SOLVERS)
    costs = {n: measure(solver, m, solver.prepare(h), h, 0.5) for n, m in (("easy", easy), ("hard", w))}
    ratios = allocate(costs, 0.5)
    assert np.mean(list(ratios.values())) == pytest.approx(0.5, abs=1e-4)
    assert ratios["easy"] > ratios["hard"] + 0.1
    same = Cost(100, [0.3, 0.5, 0.7], [0.1, 0.2, 0.4])
    assert allocate({"a": same, "b": same}, 0.5) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.03)


@pytest.mark.parametrize("text", ["3:5", "4:4", "0:4", "2:4:8", "half", "2:64", ""])
def test_a_pattern_that_is_not_known_says_which_are(text: str) -> None:
    with pytest.raises(ValueError, match="16:32"):
        Pattern.parse(text)


@pytest.mark.parametrize("ratio", [0.0, 1.0, float("nan"), -1.0])
def test_a_ratio_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="--ratio"):
        Pattern.parse("unstructured", ratio)


def test_a_span_that_does_not_divide_the_inputs_names_the_tensor() -> None:
    with pytest.raises(ValueError, match=r"'blk.0.w' has 48 inputs"):
        Pattern.parse("16:32").check("blk.0.w", 48)


def test_bad_settings_name_themselves() -> None:
    for grid in ({"bits": 7}, {"group": 48}):
        with pytest.raises(ValueError, match=next(iter(grid))):
            Grid(**grid)
    with pytest.raises(ValueError, match="damp"):
        build("solver", "sparsegpt:damp=0", SOLVERS)

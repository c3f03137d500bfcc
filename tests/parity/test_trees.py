"""Trees of drafted tokens in the native forward: every row is, bit for bit, the last row of its path read alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from tiny_models import CONFIGS, hf_arrays

from narrows.checkpoints import open_checkpoint
from narrows.models import declare
from narrows.native import NativeModel
from narrows.types import ForwardBatch
from narrows.weights import load_weights

BEFORE = [1, 62, 64, 190, 254, 256, 300]  # around ends of pages and partitions
PAGES = 12


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], NativeModel]:
    def build(label: str, threads: int) -> NativeModel:
        folder: Path = tmp_path_factory.mktemp("hf")
        config = CONFIGS[label] | {"max_position_embeddings": 1024}
        (folder / "config.json").write_text(json.dumps(config))
        safetensors.numpy.save_file(hf_arrays(config), folder / "model.safetensors")
        ckpt = open_checkpoint(folder)
        spec, sources = declare(ckpt)
        tensors = load_weights(ckpt, spec, sources, "int8", cache=False, num_threads=1)
        return NativeModel(spec, tensors, 2 * PAGES, threads)

    return build


def read(
    model: NativeModel,
    before: int,
    tokens: list[int],
    parents: list[int] | None = None,
    beside: list[int] | None = None,
) -> np.ndarray:
    """Logits [n, V] of tokens behind `before` others, on pages of their own, with a second request `beside` them."""
    rng = np.random.default_rng(before)
    pages = rng.permutation(2 * PAGES).astype(np.int32).reshape(2, PAGES)
    start = rng.integers(0, 97, before).astype(np.int32)
    one, rows = pages[:1], np.array([], np.int32)
    model.forward(ForwardBatch(start, _range(0, before), _of(0, before), _of(before), one, rows))
    n = len(tokens)
    positions = _range(before, before + n)
    if parents is not None:
        for i, parent in enumerate(parents):
            positions[i] = before if parent < 0 else positions[parent] + 1
    other = beside or []
    batch = ForwardBatch(
        np.array([*other, *tokens], np.int32),
        np.concatenate([_range(0, len(other)), positions]),
        _of(0, *([len(other)] if other else []), len(other) + n),
        _of(*([len(other)] if other else []), before + n),
        pages[::-1].copy() if other else one,
        _range(len(other), len(other) + n),
        None
        if parents is None
        else np.array([*range(-1, len(other) - 1), *(p if p < 0 else p + len(other) for p in parents)], np.int32),
    )
    return model.forward(batch).logits


def _of(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def _range(low: int, high: int) -> np.ndarray:
    return np.arange(low, high, dtype=np.int32)


def path(row: int, parents: list[int]) -> list[int]:
    return [*(path(parents[row], parents) if parents[row] >= 0 else []), row]


TREES = {
    "two leaves": [-1, 0, 0],
    "roots": [-1, -1, -1, -1, -1],
    "chains from one": [-1, 0, 1, 2, 0, 4, 5, 0, 7],
    "bushy": [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 6, 7, 11, 12, 0],
    "long": [-1, *range(0, 69), 3, *range(70, 80)],
}


@pytest.mark.parametrize("label", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("name", TREES)
def test_a_row_of_a_tree_is_its_path_alone(label: str, name: str, make: Callable[[str, int], NativeModel]) -> None:
    parents, model = TREES[name], make(label, 2)
    tokens = np.random.default_rng(5).integers(0, 97, len(parents)).tolist()
    for before in BEFORE if len(parents) < 20 else BEFORE[::3]:
        tree = read(model, before, tokens, parents)
        in_a_batch = read(model, before, tokens, parents, beside=[3, 1, 4])
        assert (tree == in_a_batch).all()
        for row in range(len(parents)) if len(parents) < 20 else (0, 40, 69, 70, 80 - 1):
            alone = read(model, before, [tokens[i] for i in path(row, parents)])
            assert (tree[row] == alone[-1]).all(), (before, row)


def test_a_chain_given_as_a_tree_is_a_chain(make: Callable[[str, int], NativeModel]) -> None:
    model, tokens = make("llama", 1), [5, 6, 7, 8, 9, 10]
    assert (read(model, 60, tokens) == read(model, 60, tokens, [-1, 0, 1, 2, 3, 4])).all()


@pytest.mark.parametrize("parents", [[-1, 1, 0], [-1, 2, 1], [-2, 0, 1], [-1, 0]])
def test_parents_that_are_no_tree_are_refused(parents: list[int], make: Callable[[str, int], NativeModel]) -> None:
    with pytest.raises(ValueError, match="parents"):
        model = make("llama", 1)
        batch = ForwardBatch(_of(1, 2, 3), _of(0, 1, 1), _of(0, 3), _of(3), _of(0).reshape(1, 1), _of(0), _of(*parents))
        model.forward(batch)

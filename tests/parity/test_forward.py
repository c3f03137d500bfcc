"""The native forward against the oracle: every family, ragged batches, pages and windows; one result on every level."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from tiny_models import BASE, CONFIGS, hf_arrays

from narrows import _native, ref
from narrows.checkpoints import open_checkpoint
from narrows.models import declare
from narrows.native import PAGE_SIZE
from narrows.types import ModelSpec
from narrows.weights import Packed, load_weights, unpack

LENGTHS = [1, 64, 65, 300]  # around pages of 64 and partitions of 256
ODD = {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 72, "intermediate_size": 100}
MODELS: dict[str, dict[str, Any]] = CONFIGS | {
    "odd sizes": {**BASE, **ODD, "model_type": "llama", "head_dim": 80},
    "no groups": {**BASE, "model_type": "qwen3", "head_dim": 48, "num_key_value_heads": 4},
    "one head": {**BASE, "model_type": "mistral", "head_dim": 16, "num_attention_heads": 1, "num_key_value_heads": 1},
}


class Model:
    """A Hugging Face directory as the engine loads it: its tensors for the oracle, and forwards in the native core."""

    def __init__(self, folder: Path, config: dict[str, Any], weights: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        safetensors.numpy.save_file(hf_arrays(config), folder / "model.safetensors")
        ckpt = open_checkpoint(folder)
        self.spec, sources = declare(ckpt)
        self.tensors = load_weights(ckpt, self.spec, sources, weights, cache=False, num_threads=1)
        self.plain = {n: unpack(w) if isinstance(w, Packed) else w for n, w in self.tensors.items()}

    def oracle(self, ids: np.ndarray, **options: Any) -> np.ndarray:
        return ref.forward(self.spec, self.plain, ids, dtype=np.float64, **options)

    def native(self, prompts: list[np.ndarray], *, isa: str = "", threads: int = 2, steps: int = 1) -> list[np.ndarray]:
        """Logits [T, V] of each prompt, all of them read together in so many steps, on pages in no order."""
        values = {f.name: getattr(self.spec, f.name) for f in fields(ModelSpec)}
        lengths = np.array([len(p) for p in prompts], np.int32)
        held = -(-lengths // PAGE_SIZE)
        model = _native.Model(values, self.tensors, PAGE_SIZE, int(held.sum()) + 3, threads, isa)
        free = iter(np.random.default_rng(0).permutation(model.num_pages).tolist())
        table = np.zeros((len(prompts), held.max()), np.int32)
        for row, n in zip(table, held, strict=True):
            row[:n] = [next(free) for _ in range(n)]
        found: list[list[np.ndarray]] = [[] for _ in prompts]
        starts = np.zeros_like(lengths)
        for step in range(1, steps + 1):
            ends = lengths * step // steps
            cu = np.concatenate(([0], np.cumsum(ends - starts))).astype(np.int32)
            spans = list(zip(prompts, starts, ends, strict=True))
            tokens = np.concatenate([p[a:b] for p, a, b in spans]).astype(np.int32)
            positions = np.concatenate([np.arange(a, b) for _, a, b in spans]).astype(np.int32)
            logits = model.forward(tokens, positions, cu, ends, table, np.arange(len(tokens), dtype=np.int32))
            for rows, a, b in zip(found, cu, cu[1:], strict=False):
                rows.append(logits[a:b])
            starts = ends
        return [np.concatenate(rows) for rows in found]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Model]:
    return lambda label, weights: Model(tmp_path_factory.mktemp("hf"), MODELS[label], weights)


def prompts(lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, BASE["vocab_size"], n) for n in lengths]


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to the nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(x.dtype)


def rms(x: np.ndarray) -> np.ndarray:
    return np.sqrt((x * x).mean(-1))


@pytest.mark.parametrize("label", MODELS)
def test_logits_are_the_oracles(label: str, make: Callable[[str, str], Model]) -> None:
    """With float32 weights, against an oracle in float64 that rounds keys and values to bfloat16 as the cache does.

    What is left is float32 arithmetic, of relative size 2^-24 to 2^-17. Entries of the cache that are off by so
    little may still round to the other neighbour, and what they change makes others do so in the layers above:
    at worst all are rounded anew. Two roundings, each at most 2^-9 and a root mean square of 2^-9 / sqrt(3),
    differ by less than 2^-9 in root mean square. How far that carries to the logits of a row is measured on the
    oracle, by changing every entry by 2^-9 up or down.
    """
    model, ids = make(label, "f32"), prompts(LENGTHS)
    rng = np.random.default_rng(4)

    def moved(entries: np.ndarray) -> np.ndarray:
        return entries * (1 + 2.0**-9 * rng.choice([-1, 1], entries.shape))

    for got, prompt in zip(model.native(ids), ids, strict=True):
        exact = model.oracle(prompt)
        reach = np.sqrt(np.mean([rms(model.oracle(prompt, store=moved) - exact) ** 2 for _ in range(2)], axis=0))
        assert (reach < 0.02 * rms(exact)).all()
        assert (rms(got - model.oracle(prompt, store=bfloat16)) <= reach).all()


@pytest.mark.parametrize("weights", ["f32", "bf16", "int8", "int4:g64:min", "int3:g16"])
@pytest.mark.parametrize("label", ["gemma3", "odd sizes"])
def test_same_bits_on_every_level_and_in_any_company(
    label: str, weights: str, make: Callable[[str, str], Model]
) -> None:
    model, ids = make(label, weights), prompts(LENGTHS)
    together = model.native(ids)
    for isa in _native.isas():
        for got, want in zip(model.native(ids, isa=isa, threads=1, steps=7), together, strict=True):
            assert np.array_equal(got, want), isa
    for prompt, want in zip(ids[:3], together, strict=False):
        assert np.array_equal(model.native([prompt], steps=min(3, len(prompt)))[0], want)


def test_bytes_are_counted(make: Callable[[str, str], Model]) -> None:
    """A step reads every matrix once, its tokens' embeddings, and the entries that its rows see, window or not."""
    model = make("mistral", "int8")
    spec = model.spec
    values = {f.name: getattr(spec, f.name) for f in fields(ModelSpec)}
    native = _native.Model(values, model.tensors, PAGE_SIZE, 2, 1)
    entry = 2 * 2 * spec.num_kv_heads * spec.head_dim  # K and V, bfloat16
    assert native.kv_bytes_per_token == spec.num_layers * entry
    page_table = np.array([[1, 0]], np.int32)

    def one(token: int, context: int) -> tuple[int, int]:
        before = native.weight_bytes, native.kv_bytes
        row = np.array([token], np.int32)
        lengths = np.array([context], np.int32)
        native.forward(row, lengths - 1, np.array([0, 1], np.int32), lengths, page_table, np.array([0], np.int32))
        return native.weight_bytes - before[0], native.kv_bytes - before[1]

    matrices = {n: w for n, w in model.tensors.items() if isinstance(w, Packed)}
    whole = sum(w.data.nbytes for n, w in matrices.items() if n != "embed")
    weight_bytes, kv_bytes = one(5, 1)
    assert whole < weight_bytes <= whole + 2 * spec.hidden_size
    assert kv_bytes == spec.num_layers * entry
    assert one(6, 100)[1] == spec.num_layers * entry * spec.layer_window[0]

"""Defects that are planted in the default model: each must fail a gate, and what is not damaged must pass all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from narrows import LLM, _native
from narrows.checkpoints import open_checkpoint
from narrows.measure.quality.drift import Drift
from narrows.measure.quality.runner import Journal, Subject, evaluate
from narrows.measure.quality.text import Divergence
from narrows.models import declare
from narrows.native import NativeModel
from narrows.types import F32, ForwardBatch, ForwardOutput
from narrows.weights import Format, Packed, load_weights, unpack

MEASURES = {"kl": Divergence(window=128, chunks=2, text="own"), "drift": Drift(tokens=48, openers=2)}
BF16 = Format(type="bf16")


@pytest.fixture(scope="module")
def baseline(smollm2_path: Path) -> LLM:
    return LLM(smollm2_path, num_threads=2, max_model_len=512)


def gates(candidate: LLM, baseline: LLM, journal: Path, measures: dict[str, Any] = MEASURES) -> dict[str, bool]:
    """Whether each gate passed, by figure."""
    results = evaluate(measures, Subject(candidate, "a", "a"), Subject(baseline, "b", "b"), Journal(journal))
    return {f"{r['measure']}.{m['metric']}": m["passed"] for r in results for m in r["metrics"] if "passed" in m}


def packed(w: F32) -> Packed:
    data = _native.alloc_huge(BF16.packed_bytes(*w.shape))
    _native.pack_float(BF16, np.ascontiguousarray(w), data)
    return Packed(BF16, *w.shape, data)


def damaged(path: Path, change: Callable[[str, F32], F32 | None]) -> LLM:
    """The model with `change(name, matrix)` in place of each of its matrices that it does not return None for."""
    llm = LLM(path, num_threads=2, max_model_len=512)
    ckpt = open_checkpoint(path)
    spec, sources = declare(ckpt)
    tensors: dict[str, Any] = dict(load_weights(ckpt, spec, sources))
    for name, tensor in tensors.items():
        if isinstance(tensor, Packed) and (changed := change(name, tensor)) is not None:
            tensors[name] = packed(changed)
    llm.engine.model = NativeModel(spec, tensors, llm.loaded.model.num_pages, 2)
    return llm


class ShiftedPositions:
    """A model whose positions are one too high in all but the first chunk of a text."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        starts = np.repeat(batch.positions[batch.cu_seqlens[:-1]], np.diff(batch.cu_seqlens))
        return self.model.forward(replace(batch, positions=batch.positions + (starts > 0).astype(np.int32)))


def test_what_is_not_damaged_passes(smollm2_path: Path, baseline: LLM, tmp_path: Path) -> None:
    undamaged = LLM(smollm2_path, num_threads=1, max_model_len=512)
    passed = gates(undamaged, baseline, tmp_path / "records")
    assert {"kl.mean", "kl.p99", "kl.worst", "kl.top1", "drift.kl", "drift.p99"} <= passed.keys()
    assert all(passed.values())


def test_eight_bit_weights_pass(smollm2_path: Path, baseline: LLM, tmp_path: Path) -> None:
    passed = gates(LLM(smollm2_path, weights="int8", num_threads=2, max_model_len=512), baseline, tmp_path / "records")
    assert all(passed[f"kl.{name}"] for name in ("mean", "p99", "worst", "top1"))


def test_three_bits_without_scales(smollm2_path: Path, baseline: LLM, tmp_path: Path) -> None:
    def coarse(name: str, matrix: Any) -> F32 | None:
        if not name.startswith("layers.") or not name.endswith((".q", ".k", ".v", ".o")):
            return None
        w = unpack(matrix)
        scale = np.abs(w).max() / 4
        return (np.clip(np.round(w / scale), -4, 3) * scale).astype(np.float32)

    passed = gates(damaged(smollm2_path, coarse), baseline, tmp_path / "records")
    assert not any(passed[name] for name in ("kl.mean", "kl.p99", "kl.worst", "kl.top1", "drift.kl", "drift.top1"))


def test_a_zeroed_kv_head(smollm2_path: Path, baseline: LLM, tmp_path: Path) -> None:
    dim = baseline.loaded.spec.head_dim

    def silent(name: str, matrix: Any) -> F32 | None:
        if name not in ("layers.15.k", "layers.15.v"):
            return None
        w = unpack(matrix)
        w[:dim] = 0
        return w

    passed = gates(damaged(smollm2_path, silent), baseline, tmp_path / "records")
    assert not passed["kl.mean"]
    assert not passed["drift.kl"]


def test_positions_off_by_one(smollm2_path: Path, baseline: LLM, tmp_path: Path) -> None:
    shifted = LLM(smollm2_path, num_threads=2, max_model_len=512)
    shifted.engine.model = ShiftedPositions(shifted.engine.model)  # type: ignore[assignment]
    passed = gates(shifted, baseline, tmp_path / "records")
    assert not passed["kl.p99"]

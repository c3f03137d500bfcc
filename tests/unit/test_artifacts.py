"""Trained heads that lie in the repository beside the package, for models that are too large to test with."""

from __future__ import annotations

from pathlib import Path

from narrows.checkpoints.head import open_head, parent_of
from narrows.models.hub import SHORT_NAMES
from narrows.types import ModelSpec, RopeSpec

HEAD = Path(__file__).parents[2] / "artifacts" / "qwen-1.5b-head"
MOST_BYTES = 20_000_000


def test_the_head_of_qwen_is_small_and_fits_its_model() -> None:
    spec = ModelSpec(
        architecture="qwen2",
        num_layers=28,
        hidden_size=1536,
        num_heads=12,
        num_kv_heads=2,
        head_dim=128,
        ffn_size=8960,
        vocab_size=151936,
        max_context=32768,
        norm_eps=1e-6,
        activation="silu",
        attention_scale=128**-0.5,
        ropes=(RopeSpec(tuple(1e6 ** (-i / 64) for i in range(64))),),
        layer_rope=(0,) * 28,
        layer_window=(0,) * 28,
    )
    head = open_head(HEAD, spec)
    assert parent_of(HEAD)["file"] == SHORT_NAMES["qwen-1.5b"].file
    assert len(head.ids) == head.info["course"]["vocab"]
    assert sum(p.stat().st_size for p in HEAD.iterdir()) <= MOST_BYTES

"""The oracle against numbers worked by hand, and against logits that transformers gave for the same weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiny_models import CONFIGS, gguf_checkpoint, hf_checkpoint

from narrows.models import declare
from narrows.ref import forward
from narrows.ref.model import gelu_tanh, rms_norm, rope_angles, rotate, silu, softmax
from narrows.types import ModelSpec, RopeSpec

IDS = np.random.default_rng(1).integers(0, 97, 24)
# First four logits of the last token, and the sum of |logits| over all tokens: transformers 5, float32, CPU.
GOLDEN = {
    "llama": (-0.128834, -1.473379, -0.034524, -0.743000, 2157.229),
    "llama-tied": (0.220487, 0.456812, -1.883478, 1.908278, 1788.091),
    "llama3": (0.411977, 0.843917, 0.900794, 0.358439, 1903.962),
    "yarn": (-0.204839, 0.490254, 0.456157, 1.250826, 1922.210),
    "mistral": (0.506205, -0.017367, -0.728162, 0.267025, 2020.279),
    "qwen2": (-1.152188, -1.558335, 0.608332, 1.568732, 2024.516),
    "qwen2-window": (0.298494, -0.539337, 1.445249, 0.374528, 1963.621),
    "qwen3": (-1.279283, -0.509243, 0.519836, 0.131917, 1877.934),
    "gemma3": (0.436221, -0.590672, -0.139929, 0.158715, 1935.435),
}


def logits_of(label: str, ids=IDS, **options) -> np.ndarray:
    ckpt = hf_checkpoint(label)
    spec, sources = declare(ckpt)
    return forward(spec, ckpt.load(sources), ids, **options)


def test_every_tiny_model_has_a_golden():
    assert GOLDEN.keys() == CONFIGS.keys()


@pytest.mark.parametrize("label", GOLDEN)
def test_logits_are_those_of_transformers(label):
    logits = logits_of(label)
    assert logits.dtype == np.float32 and logits.shape == (24, 97)
    np.testing.assert_allclose(logits[-1, :4], GOLDEN[label][:4], atol=3e-5)
    assert np.abs(logits).sum() == pytest.approx(GOLDEN[label][4], abs=0.02)


@pytest.mark.parametrize("label", ["llama", "gemma3"])
def test_float64_agrees_with_float32(label):
    exact = logits_of(label, dtype=np.float64)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(logits_of(label), exact, atol=3e-5)


@pytest.mark.parametrize("label", ["llama", "qwen2", "qwen3", "gemma3"])
def test_gguf_storage_gives_the_same_logits(label):
    """Interleaved heads are brought back to half-split order, and gemma's norms have their one already."""
    changes = {}
    if label == "gemma3":  # GGUF files imply this scale; the tiny config asks for another
        changes = {"attention.sliding_window": 8, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    ckpt = gguf_checkpoint(label, **changes)
    spec, sources = declare(ckpt)
    hf = hf_checkpoint(label, **({"query_pre_attn_scalar": 32} if label == "gemma3" else {}))
    hf_spec, hf_sources = declare(hf)
    expected = forward(hf_spec, hf.load(hf_sources), IDS)
    np.testing.assert_allclose(forward(spec, ckpt.load(sources), IDS), expected, atol=1e-5)


def test_a_later_token_changes_nothing_before_it():
    changed = IDS.copy()
    changed[-1] = (changed[-1] + 1) % 97
    np.testing.assert_allclose(logits_of("llama")[:-1], logits_of("llama", changed)[:-1], atol=1e-6)


def test_window_hides_what_is_further_back():
    """With one layer of window W, a token does not depend on the one W before it, and does on the one W - 1 before."""
    ckpt = hf_checkpoint("mistral", num_hidden_layers=1)
    for name in [n for n in ckpt.tensors if ".layers.1." in n or ".layers.2." in n]:
        del ckpt.tensors[name]
    spec, sources = declare(ckpt)
    tensors = ckpt.load(sources)
    for back, differs in ((8, True), (9, False)):
        changed = IDS.copy()
        changed[-1 - back] = (changed[-1 - back] + 1) % 97
        change = np.abs(forward(spec, tensors, IDS)[-1] - forward(spec, tensors, changed)[-1]).max()
        assert (change > 1e-4) == differs


def test_positions_are_relative():
    """RoPE scores depend on distances only."""
    np.testing.assert_allclose(logits_of("llama"), logits_of("llama", positions=np.arange(24) + 50), atol=1e-4)


def test_tokens_outside_the_vocabulary_are_refused():
    for ids in ([97], [-1], []):
        with pytest.raises(ValueError, match="ids from 0 to 96"):
            logits_of("llama", ids)


def test_one_layer_worked_by_hand():
    """One token attends to itself alone, so attention passes its value on, whatever q and k are."""
    spec = ModelSpec(
        "llama", 1, 2, 1, 1, 2, 1, 3, 8, 0.0, "silu", 1.0, (RopeSpec((1.0,)),), (0,), (0,), embed_scale=2.0
    )
    eye, one = np.eye(2, dtype=np.float32), np.ones(2, np.float32)
    tensors = {
        "embed": np.array([[0, 0], [3, 4], [1, 1]], np.float32),
        "layers.0.attn_norm": one,
        "layers.0.q": eye,
        "layers.0.k": eye,
        "layers.0.v": eye,
        "layers.0.o": 2 * eye,
        "layers.0.ffn_norm": one,
        "layers.0.gate": np.array([[1, 0]], np.float32),
        "layers.0.up": np.array([[0, 1]], np.float32),
        "layers.0.down": np.array([[1], [0]], np.float32),
        "norm": one,
        "head": np.array([[1, 0], [0, 1], [1, 1]], np.float32),
    }
    x = np.array([6.0, 8.0])
    x = x + 2 * x / math.sqrt(50)
    n = x / math.sqrt((x**2).mean())
    x = x + np.array([n[0] / (1 + math.exp(-n[0])) * n[1], 0])
    a, b = x / math.sqrt((x**2).mean())
    np.testing.assert_allclose(forward(spec, tensors, [1]), [[a, b, a + b]], rtol=1e-6)


def test_small_pieces():
    x = np.array([3.0, 4.0], np.float32)
    np.testing.assert_allclose(rms_norm(x, np.array([1.0, 2.0], np.float32), 0.0), np.array([3, 8]) / math.sqrt(12.5))
    np.testing.assert_allclose(softmax(np.array([0.0, math.log(3), -np.inf])), [0.25, 0.75, 0.0])
    np.testing.assert_allclose(silu(np.array([0.0, 1.0, -1000.0])), [0, 1 / (1 + math.exp(-1)), 0], atol=1e-12)
    np.testing.assert_allclose(gelu_tanh(np.array([0.0, 1.0, -1.0])), [0, 0.8411920, -0.1588080], atol=1e-6)


def test_rotation_turns_pairs_half_a_head_apart():
    rotation = rope_angles(RopeSpec((math.pi / 2, 0.0), scale=2.0), np.array([1]), np.float64)
    turned = rotate(np.array([[[1.0, 2.0, 3.0, 4.0]]]), rotation)
    np.testing.assert_allclose(turned, [[[-6.0, 4.0, 2.0, 8.0]]], atol=1e-12)

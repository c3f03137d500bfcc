"""The forward pass of every family, as slow and as plain as it can be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..types import F32, ModelSpec, RopeSpec

Array = npt.NDArray[Any]


def forward(
    spec: ModelSpec,
    tensors: Mapping[str, F32],
    tokens: Sequence[int] | npt.NDArray[np.integer],
    positions: Sequence[int] | npt.NDArray[np.integer] | None = None,
    *,
    dtype: npt.DTypeLike = np.float32,
    store: Callable[[Array], Array] = lambda entries: entries,
) -> Array:
    """Logits [T, V] of one sequence of token ids [T], each seeing itself and what comes before it.

    `tensors` are float32 matrices [out, in] and vectors [n] under canonical names. `positions` [T] are what RoPE sees,
    0..T-1 by default. `dtype` is the arithmetic: float64 leaves only the rounding of the code under test.
    `store` is what the cache makes of keys and of values [T, Hkv, D]: by default it keeps them as they are.
    Raises ValueError for a token id outside the vocabulary, KeyError for a missing tensor.
    """
    x = hidden(spec, tensors, tokens, positions, dtype=dtype, store=store)
    return x @ np.asarray(tensors["embed" if spec.tied_head else "head"], dtype=dtype).T


def hidden(
    spec: ModelSpec,
    tensors: Mapping[str, F32],
    tokens: Sequence[int] | npt.NDArray[np.integer],
    positions: Sequence[int] | npt.NDArray[np.integer] | None = None,
    *,
    dtype: npt.DTypeLike = np.float32,
    store: Callable[[Array], Array] = lambda entries: entries,
) -> Array:
    """What `forward` gives to the head: the hidden states [T, H] after the final norm."""
    ids = np.asarray(tokens, dtype=np.int64)
    if ids.ndim != 1 or ids.size == 0 or ids.min() < 0 or ids.max() >= spec.vocab_size:
        raise ValueError(f"tokens must be a non-empty list of ids from 0 to {spec.vocab_size - 1}")
    where = np.arange(len(ids)) if positions is None else np.asarray(positions)

    def get(name: str) -> Array:
        return np.asarray(tensors[name], dtype=dtype)

    x = np.asarray(tensors["embed"][ids], dtype=dtype) * np.asarray(spec.embed_scale, dtype=dtype)
    for i in range(spec.num_layers):
        layer = {k.rsplit(".", 1)[1]: get(k) for k in tensors if k.startswith(f"layers.{i}.")}
        rotation = rope_angles(spec.ropes[spec.layer_rope[i]], where, dtype)
        h = rms_norm(x, layer["attn_norm"], spec.norm_eps)
        h = attention(spec, layer, h, rotation, spec.layer_window[i], store)
        if "attn_post_norm" in layer:
            h = rms_norm(h, layer["attn_post_norm"], spec.norm_eps)
        x = x + h
        h = feed_forward(spec, layer, rms_norm(x, layer["ffn_norm"], spec.norm_eps))
        if "ffn_post_norm" in layer:
            h = rms_norm(h, layer["ffn_post_norm"], spec.norm_eps)
        x = x + h
    return rms_norm(x, get("norm"), spec.norm_eps)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [..., n] over its root mean square, times weight [n]."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.asarray(eps, x.dtype)) * weight


def rope_angles(rope: RopeSpec, positions: Array, dtype: npt.DTypeLike = np.float32) -> tuple[Array, Array]:
    """Cosines and sines [T, 1, D/2] of the rotation at each position."""
    angles = np.multiply.outer(positions.astype(dtype), np.asarray(rope.inv_freq, dtype=dtype))[:, None, :]
    scale = np.asarray(rope.scale, dtype=dtype)
    return np.cos(angles) * scale, np.sin(angles) * scale


def rotate(x: Array, rotation: tuple[Array, Array]) -> Array:
    """x [T, heads, D] with pair (i, i + D/2) of each head rotated: the half-split order."""
    cos, sin = rotation
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(
    spec: ModelSpec,
    layer: Mapping[str, Array],
    x: Array,
    rotation: tuple[Array, Array],
    window: int,
    store: Callable[[Array], Array],
) -> Array:
    """Grouped-query attention over x [T, H]: query head h reads key/value head h // (Hq / Hkv). Returns [T, H]."""
    num_tokens = len(x)

    def heads(part: str, count: int) -> Array:
        y = x @ layer[part].T
        if f"{part}_bias" in layer:
            y = y + layer[f"{part}_bias"]
        y = y.reshape(num_tokens, count, spec.head_dim)
        return rms_norm(y, layer[f"{part}_norm"], spec.norm_eps) if f"{part}_norm" in layer else y

    q = rotate(heads("q", spec.num_heads), rotation)
    k = store(rotate(heads("k", spec.num_kv_heads), rotation))
    v = store(heads("v", spec.num_kv_heads))

    # A token sees itself and what came before it, at most `window` tokens in all when there is a window.
    distance = np.subtract.outer(np.arange(num_tokens), np.arange(num_tokens))
    seen = (distance >= 0) & ((distance < window) if window else True)
    out = np.empty_like(q)
    for h in range(spec.num_heads):
        g = h // (spec.num_heads // spec.num_kv_heads)
        scores = q[:, h] @ k[:, g].T * np.asarray(spec.attention_scale, x.dtype)
        out[:, h] = softmax(np.where(seen, scores, -np.inf)) @ v[:, g]
    return out.reshape(num_tokens, -1) @ layer["o"].T


def feed_forward(spec: ModelSpec, layer: Mapping[str, Array], x: Array) -> Array:
    """Gated feed-forward over x [T, H]. Returns [T, H]."""
    gate = x @ layer["gate"].T
    act = silu(gate) if spec.activation == "silu" else gelu_tanh(gate)
    return (act * (x @ layer["up"].T)) @ layer["down"].T


def softmax(x: Array) -> Array:
    """Softmax over the last axis; -inf entries get exactly zero."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x: Array) -> Array:
    """x * sigmoid(x), with the exponential that cannot overflow."""
    e = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1.0, e).astype(x.dtype) / (1.0 + e)


def gelu_tanh(x: Array) -> Array:
    """The tanh approximation of GELU."""
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi).astype(x.dtype) * (x + 0.044715 * x**3)))

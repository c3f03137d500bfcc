"""A drafting head, as slow and as plain as it can be written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..types import F32, ModelSpec
from .model import Array, attention, feed_forward, rms_norm, rope_angles


def head_states(spec: ModelSpec, weights: Mapping[str, F32], embeds: Array, features: Array) -> Array:
    """The states [T, H] that a head leaves behind tokens with these embeddings and features [T, H], positions 0..T-1.

    `weights` are by the names they have on disk (EAGLE-3, arXiv:2503.01840, section 3.1); `spec` is the target's.
    """
    layer = {name.removeprefix("layers.0."): np.asarray(w, embeds.dtype) for name, w in weights.items()}
    rotation = rope_angles(spec.ropes[spec.layer_rope[-1]], np.arange(len(embeds)), embeds.dtype)
    embeds = embeds * np.asarray(spec.embed_scale, embeds.dtype)
    pair = np.concatenate(
        [
            rms_norm(embeds, layer["embed_norm"], spec.norm_eps),
            rms_norm(features, layer["attn_norm"], spec.norm_eps),
        ],
        axis=1,
    )
    x = features + attention(spec, layer, pair, rotation, 0, lambda entries: entries)
    return x + feed_forward(spec, layer, rms_norm(x, layer["ffn_norm"], spec.norm_eps))

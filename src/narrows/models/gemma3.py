"""Gemma 3, the text part: five sliding-window layers to each full one, two RoPEs, norms before and after."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..types import ModelSpec, RopeSpec
from .base import Config, Traits
from .decoder import FULL, SLIDING, decoder_spec, layer_types, window_size
from .rope import plain_rope, read_rope

# What a config.json of a multimodal checkpoint leaves out.
TEXT_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "ffn_size": 9216,
    "num_layers": 26,
    "num_heads": 8,
    "num_kv_heads": 4,
    "head_dim": 256,
    "max_context": 131072,
}
GLOBAL_THETA, LOCAL_THETA = 1e6, 1e4
LAYERS_27B = 62  # the one size whose attention scale is not 1/sqrt(D); GGUF files do not say so


class Gemma3:
    traits = Traits(
        qk_norm=True,
        post_norms=True,
        hf_norm_add=1.0,
        hf_ignored=("*vision_tower.*", "*multi_modal_projector.*"),
    )

    def spec(self, config: Config) -> ModelSpec:
        if config.raw("text_config") is not None:
            config = config.section("text_config")
        spec = decoder_spec(
            config,
            activation="gelu_tanh",
            activation_key="hidden_activation",
            theta=GLOBAL_THETA,
            rope_layer_type=FULL,
            tied=True,
            defaults={} if config.is_gguf else TEXT_DEFAULTS,
        )
        types = layer_types(config, spec.num_layers)
        if types is None:
            every = config.integer("window_pattern", 1, 1024, 6)
            types = [SLIDING if (i + 1) % every else FULL for i in range(spec.num_layers)]
        window = window_size(config, None if config.is_gguf else 4096)
        return replace(
            spec,
            attention_scale=self._attention_scale(config, spec),
            ropes=(*spec.ropes, read_local_rope(config, spec)),
            layer_rope=tuple(int(t == SLIDING) for t in types),
            layer_window=tuple(window if t == SLIDING else 0 for t in types),
            embed_scale=float(np.float32(spec.hidden_size**0.5)),
        )

    def _attention_scale(self, config: Config, spec: ModelSpec) -> float:
        if config.is_gguf:
            return (spec.hidden_size // spec.num_heads if spec.num_layers == LAYERS_27B else spec.head_dim) ** -0.5
        return config.number("query_pre_attn_scalar", 1.0, 1e6, 256.0) ** -0.5


def read_local_rope(config: Config, spec: ModelSpec) -> RopeSpec:
    """The RoPE of the sliding layers: a base of its own, and none of the scaling of the full layers."""
    if not config.is_gguf and config.raw("rope_parameters") is not None:
        return read_rope(config, spec.head_dim, spec.max_context, LOCAL_THETA, SLIDING)
    key = "rope.freq_base_swa" if config.is_gguf else "rope_local_base_freq"
    return plain_rope(config.number(key, 1.0, 1e12, LOCAL_THETA), spec.head_dim)

"""Qwen2 and Qwen2.5: biases on query, key and value; some layers with a sliding window when the checkpoint asks."""

from __future__ import annotations

from dataclasses import replace

from ..types import ModelSpec
from .base import Config, Traits
from .decoder import decoder_spec, windows_from


class Qwen2:
    traits = Traits(qkv_bias=True)

    def spec(self, config: Config) -> ModelSpec:
        spec = decoder_spec(config)
        return replace(spec, layer_window=windows_from(config, spec.num_layers))

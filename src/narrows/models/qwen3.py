"""Qwen3, dense: norms on each query and key head instead of Qwen2's biases, and a head size of its own."""

from __future__ import annotations

from dataclasses import replace

from ..types import ModelSpec
from .base import Config, Traits
from .decoder import decoder_spec, windows_from


class Qwen3:
    traits = Traits(qk_norm=True)

    def spec(self, config: Config) -> ModelSpec:
        spec = decoder_spec(config, defaults={} if config.is_gguf else {"head_dim": 128})
        return replace(spec, layer_window=windows_from(config, spec.num_layers))

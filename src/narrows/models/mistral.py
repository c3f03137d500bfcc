"""Mistral: Llama with a sliding window in every layer of its first versions. GGUF files call it llama."""

from __future__ import annotations

from dataclasses import replace

from ..types import ModelSpec
from .base import Config, Traits
from .decoder import decoder_spec, window_size


class Mistral:
    traits = Traits(interleaved_gguf=True)

    def spec(self, config: Config) -> ModelSpec:
        spec = decoder_spec(config, defaults={"num_kv_heads": 8})
        # A null window means full attention; a missing one means the first version's.
        if config.raw("window") is None and (config.has("window") or config.is_gguf):
            return spec
        return replace(spec, layer_window=(window_size(config, 4096),) * spec.num_layers)

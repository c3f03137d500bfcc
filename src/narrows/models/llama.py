"""Llama 1 to 3.2, SmolLM and everything else that shares the shape; in GGUF files also Mistral."""

from __future__ import annotations

from ..types import ModelSpec
from .base import Config, Traits
from .decoder import decoder_spec


class Llama:
    traits = Traits(interleaved_gguf=True)

    def spec(self, config: Config) -> ModelSpec:
        return decoder_spec(config)

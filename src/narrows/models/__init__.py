"""Checkpoints to model specifications: `declare`, and one declaration file per family."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from ..types import ModelSpec, TensorSource
from .base import Checkpoint, Config, Family, ModelError
from .tensors import tensor_sources

# `general.architecture` of a GGUF file or `model_type` of a config.json -> "module:Class"
FAMILIES = {
    "llama": "narrows.models.llama:Llama",
    "mistral": "narrows.models.mistral:Mistral",
    "qwen2": "narrows.models.qwen2:Qwen2",
    "qwen3": "narrows.models.qwen3:Qwen3",
    "gemma3": "narrows.models.gemma3:Gemma3",
    "gemma3_text": "narrows.models.gemma3:Gemma3",
}

__all__ = ["FAMILIES", "ModelError", "declare", "find_family"]


def declare(ckpt: Checkpoint) -> tuple[ModelSpec, dict[str, TensorSource]]:
    """What the checkpoint computes, and where each canonical tensor comes from.

    Raises ModelError, naming the field or tensor, when the architecture is not known, the configuration is malformed or
    asks for something the forward does not compute, or a tensor is missing, misshapen or has no place.
    """
    architecture = _architecture(ckpt)
    family = find_family(architecture)
    config = Config(ckpt, architecture)
    if ckpt.kind != "gguf" and config.raw("quantization_config") is not None:
        raise config.error("quantization_config", "use a GGUF file, or the checkpoint this one was quantised from")
    spec = family.spec(config)
    return spec, tensor_sources(ckpt, spec, family.traits)


def find_family(architecture: str) -> Family:
    """The family of an architecture name. Raises ModelError for a name that is not known."""
    if architecture not in FAMILIES:
        near = get_close_matches(architecture, FAMILIES, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        known = ", ".join(FAMILIES)
        raise ModelError(f"architecture {architecture[:80]!r} is not supported{hint}; supported are {known}")
    module, name = FAMILIES[architecture].split(":")
    return getattr(import_module(module), name)()


def _architecture(ckpt: Checkpoint) -> str:
    key = "general.architecture" if ckpt.kind == "gguf" else "model_type"
    value = ckpt.metadata.get(key)
    if not isinstance(value, str):
        raise ModelError(f"{ckpt.path} does not name its architecture ({key!r} is missing or not a string)")
    return value

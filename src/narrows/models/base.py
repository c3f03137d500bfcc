"""What a family declares, and the reader of a checkpoint's configuration that it declares it from.

A family is one small class: `Traits` say which tensors its layers have, `spec` turns the configuration into a
`ModelSpec`.
The configuration of both kinds of checkpoint is read by one name per field, so that a family is written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..types import ModelSpec


class ModelError(ValueError):
    """A checkpoint that is not a model Narrows can run; the message names the field or tensor and the fix."""


class TensorEntry(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


class Checkpoint(Protocol):
    """The part of an open checkpoint that models read."""

    @property
    def kind(self) -> str: ...  # "gguf" | "safetensors"
    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, TensorEntry]: ...
    def raw(self, name: str) -> np.ndarray: ...  # uint8 [nbytes]


@dataclass(frozen=True, slots=True)
class Traits:
    """Which optional tensors a layer has, and how files store some of them."""

    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False  # norms after attention and after the FFN, before the residual sum
    interleaved_gguf: bool = False  # GGUF files hold Q and K rows in interleaved RoPE order
    hf_norm_add: float = 0.0  # Hugging Face files hold norms as w - hf_norm_add
    hf_ignored: tuple[str, ...] = ()  # name patterns of tensors that text generation does not need


class Family(Protocol):
    """One architecture. Instances hold no state."""

    traits: Traits

    def spec(self, config: Config) -> ModelSpec:
        """The model that the configuration describes. Raises ModelError."""
        ...


# field: (key in a GGUF file, after "<architecture>."; key in config.json)
FIELDS = {
    "num_layers": ("block_count", "num_hidden_layers"),
    "hidden_size": ("embedding_length", "hidden_size"),
    "num_heads": ("attention.head_count", "num_attention_heads"),
    "num_kv_heads": ("attention.head_count_kv", "num_key_value_heads"),
    "head_dim": ("attention.key_length", "head_dim"),
    "ffn_size": ("feed_forward_length", "intermediate_size"),
    "max_context": ("context_length", "max_position_embeddings"),
    "norm_eps": ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    "window": ("attention.sliding_window", "sliding_window"),
    "window_pattern": ("attention.sliding_window_pattern", "sliding_window_pattern"),
    "rope_theta": ("rope.freq_base", "rope_theta"),
    "rope_type": ("rope.scaling.type", "rope_type"),
    "rope_factor": ("rope.scaling.factor", "factor"),
    "rope_original_context": ("rope.scaling.original_context_length", "original_max_position_embeddings"),
    "rope_attention_factor": ("rope.scaling.attn_factor", "attention_factor"),
    "rope_beta_fast": ("rope.scaling.yarn_beta_fast", "beta_fast"),
    "rope_beta_slow": ("rope.scaling.yarn_beta_slow", "beta_slow"),
}


class Config:
    """Typed access to a checkpoint's configuration. Errors name the key as the file spells it, its value and the file.

    Fields are the names of `FIELDS`; any other name is a key taken as it is (after the architecture, in a GGUF file).
    A key that is null counts as missing. A value of None for `default` makes the field required.
    """

    def __init__(self, ckpt: Checkpoint, architecture: str) -> None:
        self.ckpt = ckpt
        self.architecture = architecture
        self.is_gguf = ckpt.kind == "gguf"
        self._values = ckpt.metadata
        self._prefix = f"{architecture}." if self.is_gguf else ""

    def section(self, key: str) -> Config:
        """A nested object of config.json; empty when it is missing."""
        value = self._values.get(key)
        if not isinstance(value, Mapping | None):
            raise self.error(key, "must be an object")
        return self.nested(key, value or {})

    def nested(self, label: str, values: Mapping[str, Any]) -> Config:
        """The same checkpoint, read from `values`; errors name keys as ``label.key``."""
        inner = Config(self.ckpt, self.architecture)
        inner._values, inner._prefix = values, f"{self._prefix}{label}."
        return inner

    def has(self, field: str) -> bool:
        """Whether the key is there, null or not."""
        return self._key(field) in self._values

    def raw(self, field: str) -> Any:
        return self._values.get(self._key(field))

    def items(self) -> Mapping[str, Any]:
        return self._values

    def error(self, field: str, problem: str) -> ModelError:
        value = f"{self.raw(field)!r:.80}" if self.has(field) else "missing"
        return ModelError(f"{self._label(field)} is {value} in {self.ckpt.path}: {problem}")

    def integer(self, field: str, low: int, high: int, default: int | None = None) -> int:
        value = self._required(field, default)
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise self.error(field, "must be an integer")
        if not low <= int(value) <= high:
            raise self.error(field, f"must be between {low} and {high}")
        return int(value)

    def number(self, field: str, low: float, high: float, default: float | None = None) -> float:
        value = self._required(field, default)
        if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
            raise self.error(field, "must be a number")
        if not low <= value <= high:  # true for NaN, and no conversion of a huge integer
            raise self.error(field, f"must be between {low:g} and {high:g}")
        return float(value)

    def flag(self, field: str, default: bool) -> bool:
        value = self._required(field, default)
        if not isinstance(value, bool | np.bool_):
            raise self.error(field, "must be true or false")
        return bool(value)

    def text(self, field: str, default: str | None = None) -> str:
        value = self._required(field, default)
        if not isinstance(value, str):
            raise self.error(field, "must be a string")
        return value

    def _required(self, field: str, default: Any) -> Any:
        value = self.raw(field)
        if value is None:
            value = default
        if value is None:
            raise self.error(field, f"a {self.architecture} model needs it")
        return value

    def _key(self, field: str) -> str:
        name = FIELDS.get(field, (field, field))[0 if self.is_gguf else 1]
        return f"{self._prefix}{name}" if self.is_gguf else name

    def _label(self, field: str) -> str:
        return self._key(field) if self.is_gguf else f"{self._prefix}{self._key(field)}"

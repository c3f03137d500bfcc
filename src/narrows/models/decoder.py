"""The fields that every family shares: read once, checked once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..types import ModelSpec
from .base import Config, ModelError
from .rope import read_rope

FULL, SLIDING = "full_attention", "sliding_attention"
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
EXPERTS = ("expert_count", "num_local_experts", "num_experts")
# Settings that change what a model computes in ways the forward does not know, with the values that leave it alone.
NEUTRAL: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(EXPERTS, (0,)),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "use_bidirectional_attention": (False,),
}


def decoder_spec(
    config: Config,
    *,
    activation: str = "silu",
    activation_key: str = "hidden_act",
    theta: float = 10000.0,
    rope_layer_type: str | None = None,
    tied: bool = False,
    defaults: Mapping[str, int] | None = None,
) -> ModelSpec:
    """A plain decoder: one RoPE, full attention in every layer, scale 1/sqrt(D). Families change what differs.

    `defaults` are the family's values for integer fields that a config.json may leave out; `theta` and `tied` likewise;
    `rope_layer_type` is the entry of `rope_parameters` that describes the (first) RoPE. Raises ModelError.
    """
    defaults = defaults or {}
    _refuse_unknown(config)

    def integer(field: str, low: int, high: int, default: int | None = None) -> int:
        return config.integer(field, low, high, defaults.get(field, default))

    num_layers = integer("num_layers", 1, 1024)
    hidden_size = integer("hidden_size", 1, 1 << 17)
    num_heads = integer("num_heads", 1, 1024)
    num_kv_heads = integer("num_kv_heads", 1, 1024, num_heads)
    if num_heads % num_kv_heads:
        raise config.error("num_kv_heads", f"must divide the number of query heads ({num_heads})")
    head_dim = _head_dim(config, hidden_size, num_heads, defaults.get("head_dim"))
    max_context = integer("max_context", 1, 1 << 30)
    return ModelSpec(
        architecture=config.architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_size=integer("ffn_size", 1, 1 << 20),
        vocab_size=_vocab_size(config) if config.is_gguf else integer("vocab_size", 1, 1 << 24),
        max_context=max_context,
        norm_eps=config.number("norm_eps", 0.0, 1.0, None if config.is_gguf else 1e-6),
        activation=_activation(config, activation, activation_key),
        attention_scale=head_dim**-0.5,
        ropes=(read_rope(config, head_dim, max_context, theta, rope_layer_type),),
        layer_rope=(0,) * num_layers,
        layer_window=(0,) * num_layers,
        tied_head="output.weight" not in config.ckpt.tensors
        if config.is_gguf
        else config.flag("tie_word_embeddings", tied),
    )


def layer_types(config: Config, num_layers: int) -> list[str] | None:
    """`layer_types` of config.json: FULL or SLIDING for each layer; None when the file has none."""
    types = None if config.is_gguf else config.raw("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != num_layers or any(t not in (FULL, SLIDING) for t in types):
        raise config.error("layer_types", f"must list {FULL!r} or {SLIDING!r} for each of the {num_layers} layers")
    return types


def window_size(config: Config, default: int | None = None) -> int:
    """The sliding window in tokens: a token sees itself and the window - 1 before it."""
    return config.integer("window", 1, 1 << 30, default)


def windows_from(config: Config, num_layers: int) -> tuple[int, ...]:
    """Windows of the families that switch them on with `use_sliding_window` (Qwen), in tokens, 0 = full attention."""
    if config.is_gguf or not config.flag("use_sliding_window", False):
        return (0,) * num_layers
    window, first = window_size(config, 4096), config.integer("max_window_layers", 0, 1 << 20, 28)
    types = layer_types(config, num_layers) or [SLIDING if i >= first else FULL for i in range(num_layers)]
    return tuple(window if t == SLIDING else 0 for t in types)


def _refuse_unknown(config: Config) -> None:
    for key, neutral in NEUTRAL.items():
        value = config.raw(key)
        if value is not None and not (np.isscalar(value) and value in neutral):
            what = "mixture-of-experts models are" if key in EXPERTS else "this setting is"
            raise config.error(key, f"{what} not supported")


def _head_dim(config: Config, hidden_size: int, num_heads: int, default: int | None) -> int:
    if default is None and config.raw("head_dim") is None and hidden_size % num_heads:
        raise config.error("num_heads", f"must divide the hidden size ({hidden_size}) when no head size is given")
    head_dim = config.integer("head_dim", 1, 1024, default or hidden_size // num_heads)
    if head_dim % 16:
        raise ModelError(f"{config.ckpt.path} has heads of {head_dim} values; Narrows needs a multiple of 16")
    if config.is_gguf and config.integer("attention.value_length", 1, 1024, head_dim) != head_dim:
        raise config.error("attention.value_length", f"must equal the key length ({head_dim})")
    return head_dim


def _vocab_size(config: Config) -> int:
    """A GGUF file says it best by its embedding: the metadata key is optional and sometimes stale."""
    embedding = config.ckpt.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2 or not 1 <= embedding.shape[0] <= 1 << 24:
        raise ModelError(f"{config.ckpt.path} has no usable 'token_embd.weight' tensor: the file is incomplete")
    return int(embedding.shape[0])


def _activation(config: Config, expected: str, key: str) -> str:
    if config.is_gguf:  # the architecture implies it
        return expected
    names = [name for name, ours in ACTIVATIONS.items() if ours == expected]
    if config.text(key, names[0]) not in names:
        raise config.error(key, f"a {config.architecture} model is run with {' or '.join(names)} only")
    return expected

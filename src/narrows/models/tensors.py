"""Canonical tensor names to the names, shapes and storage quirks of either kind of checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from ..types import ModelSpec, TensorSource
from .base import Checkpoint, ModelError, Traits
from .rope import ROPE_FREQS

GGUF_TOP = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "attn_post_norm": "post_attention_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "ffn_post_norm": "post_ffw_norm.weight",
}
HF_TOP = {"embed": "embed_tokens.weight", "norm": "norm.weight", "head": "lm_head.weight"}
HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
# With norms on both sides, the name that elsewhere means the FFN's norm is the one after attention.
HF_POST_NORMS = {
    "attn_post_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "ffn_post_norm": "post_feedforward_layernorm.weight",
}
# Tensors that some converters store though the configuration already says what they hold.
IGNORED = ("*rotary_emb.inv_freq", "*.attn_rot_embd.weight")


def tensor_sources(ckpt: Checkpoint, spec: ModelSpec, traits: Traits) -> dict[str, TensorSource]:
    """Canonical name -> source, for every tensor of the model.

    Raises ModelError for a tensor that is missing, has the wrong shape, or that the model has no place for.
    """
    is_gguf = ckpt.kind == "gguf"
    names = _gguf_names(spec) if is_gguf else _hf_names(ckpt, spec, traits)
    shapes = dict(_shapes(spec, traits))
    sources: dict[str, TensorSource] = {}
    for canonical, shape in shapes.items():
        name, part = names[canonical], canonical.rsplit(".", 1)[-1]
        entry = ckpt.tensors.get(name)
        if entry is None:
            raise ModelError(
                f"tensor {name!r} is missing from {ckpt.path}: the checkpoint is incomplete, or not a plain "
                f"{spec.architecture} model"
            )
        if tuple(entry.shape) != shape:
            raise ModelError(
                f"tensor {name!r} of {ckpt.path} has shape {tuple(entry.shape)}, but the configuration says {shape}"
            )
        interleaved = is_gguf and traits.interleaved_gguf and part in ("q", "k")
        heads = spec.num_heads if part == "q" else spec.num_kv_heads
        sources[canonical] = TensorSource(
            name,
            shape,
            interleaved_heads=heads if interleaved else 0,
            add=traits.hf_norm_add if not is_gguf and part.endswith("norm") else 0.0,
        )
    _refuse_strangers(ckpt, spec, {s.name for s in sources.values()} | {names["head"]}, traits)
    return sources


def _shapes(spec: ModelSpec, traits: Traits) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, ffn, dim = spec.hidden_size, spec.ffn_size, spec.head_dim
    query, key = spec.num_heads * dim, spec.num_kv_heads * dim
    layer: dict[str, tuple[int, ...]] = {"attn_norm": (hidden,)}
    layer |= {"q": (query, hidden), "k": (key, hidden), "v": (key, hidden), "o": (hidden, query)}
    if traits.qkv_bias:
        layer |= {"q_bias": (query,), "k_bias": (key,), "v_bias": (key,)}
    if traits.qk_norm:
        layer |= {"q_norm": (dim,), "k_norm": (dim,)}
    layer |= {"ffn_norm": (hidden,), "gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}
    if traits.post_norms:
        layer |= {"attn_post_norm": (hidden,), "ffn_post_norm": (hidden,)}
    yield "embed", (spec.vocab_size, hidden)
    for i in range(spec.num_layers):
        for part, shape in layer.items():
            yield f"layers.{i}.{part}", shape
    yield "norm", (hidden,)
    if not spec.tied_head:
        yield "head", (spec.vocab_size, hidden)


def _gguf_names(spec: ModelSpec) -> dict[str, str]:
    layers = {f"layers.{i}.{part}": f"blk.{i}.{n}" for i in range(spec.num_layers) for part, n in GGUF_LAYER.items()}
    return GGUF_TOP | layers


def _hf_names(ckpt: Checkpoint, spec: ModelSpec, traits: Traits) -> dict[str, str]:
    """Text models sit under `model.`, in multimodal checkpoints under `language_model.` before or after it."""
    embeddings = [n for n in ckpt.tensors if f".{n}".endswith(f".{HF_TOP['embed']}")]
    if len(embeddings) != 1:
        raise ModelError(f"{ckpt.path} has {len(embeddings)} tensors named '*{HF_TOP['embed']}'; a text model has one")
    prefix = embeddings[0].removesuffix(HF_TOP["embed"])
    head = [n for n in ckpt.tensors if f".{n}".endswith(f".{HF_TOP['head']}")]
    layer = HF_LAYER | (HF_POST_NORMS if traits.post_norms else {})
    names = {
        f"layers.{i}.{part}": f"{prefix}layers.{i}.{n}" for i in range(spec.num_layers) for part, n in layer.items()
    }
    top = {"embed": embeddings[0], "norm": prefix + HF_TOP["norm"], "head": head[0] if head else HF_TOP["head"]}
    return top | names


def _refuse_strangers(ckpt: Checkpoint, spec: ModelSpec, known: set[str], traits: Traits) -> None:
    """A tensor without a place means a model that computes something else. A tied head may be stored all the same."""
    patterns = (ROPE_FREQS, *IGNORED) if ckpt.kind == "gguf" else (*IGNORED, *traits.hf_ignored)
    for name in ckpt.tensors:
        if name not in known and not any(fnmatchcase(name, p) for p in patterns):
            raise ModelError(
                f"tensor {name!r} of {ckpt.path} has no place in a {spec.architecture} model: running without "
                "it would give wrong results"
            )

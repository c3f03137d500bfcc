"""Tiny models of every family with weights from a seed, as the checkpoints that `declare` reads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from narrows.types import F32, TensorSource

BASE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
GEMMA = {
    "num_hidden_layers": 7,
    "head_dim": 32,
    "sliding_window": 8,
    "query_pre_attn_scalar": 48,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
# label: config.json
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**BASE, "model_type": "llama"},
    "llama-tied": {**BASE, "model_type": "llama", "head_dim": 32, "tie_word_embeddings": True},
    "llama3": {**BASE, "model_type": "llama", "head_dim": 32, "rope_scaling": LLAMA3},
    "yarn": {**BASE, "model_type": "llama", "head_dim": 32, "rope_scaling": YARN},
    "mistral": {**BASE, "model_type": "mistral", "sliding_window": 9},
    "qwen2": {**BASE, "model_type": "qwen2", "use_sliding_window": False},
    "qwen2-window": {
        **BASE,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 7,
        "max_window_layers": 1,
    },
    "qwen3": {**BASE, "model_type": "qwen3", "head_dim": 32},
    "gemma3": {**BASE, "model_type": "gemma3_text", **GEMMA},
}


class FakeCheckpoint:
    """An open checkpoint in memory."""

    def __init__(self, kind: str, metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.kind, self.metadata, self.arrays = kind, metadata, arrays
        self.path = Path("tiny.gguf" if kind == "gguf" else "tiny")
        self.tensors = {n: SimpleNamespace(shape=a.shape, nbytes=a.nbytes, dtype="F32") for n, a in arrays.items()}

    def raw(self, name: str) -> np.ndarray:
        return self.arrays[name].view(np.uint8).reshape(-1)

    def load(self, sources: dict[str, TensorSource]) -> dict[str, F32]:
        """Canonical tensors, by the plainest reading of what a source asks for."""
        return {name: self._load(source) for name, source in sources.items()}

    def _load(self, source: TensorSource) -> F32:
        w = self.arrays[source.name]
        if heads := source.interleaved_heads:
            w = w.reshape(heads, -1, 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)
        return w + np.float32(source.add)


def hf_arrays(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights under the names of a Hugging Face checkpoint, in a fixed order of draws."""
    rng = np.random.default_rng(seed)
    family, hidden, ffn = config["model_type"], config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim", hidden // config["num_attention_heads"])
    query, key = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    gemma = family.startswith("gemma3")
    out: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, cols: int) -> None:
        out[name] = (rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)

    def vector(name: str, n: int, mean: float) -> None:
        out[name] = (mean + 0.2 * rng.standard_normal(n)).astype(np.float32)

    norm_mean = 0.0 if gemma else 1.0
    matrix("model.embed_tokens.weight", config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, rows in (("q", query), ("k", key), ("v", key)):
            matrix(f"{p}self_attn.{name}_proj.weight", rows, hidden)
            if family == "qwen2":
                vector(f"{p}self_attn.{name}_proj.bias", rows, 0.0)
        matrix(f"{p}self_attn.o_proj.weight", hidden, query)
        if family == "qwen3" or gemma:
            vector(f"{p}self_attn.q_norm.weight", dim, norm_mean)
            vector(f"{p}self_attn.k_norm.weight", dim, norm_mean)
        matrix(f"{p}mlp.gate_proj.weight", ffn, hidden)
        matrix(f"{p}mlp.up_proj.weight", ffn, hidden)
        matrix(f"{p}mlp.down_proj.weight", hidden, ffn)
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else []
        for name in norms:
            vector(f"{p}{name}.weight", hidden, norm_mean)
    vector("model.norm.weight", hidden, norm_mean)
    if not config["tie_word_embeddings"]:
        matrix("lm_head.weight", config["vocab_size"], hidden)
    return out


def hf_checkpoint(label: str, **changes: Any) -> FakeCheckpoint:
    """The tiny model `label` as a Hugging Face checkpoint; `changes` go to config.json after the weights are made."""
    return FakeCheckpoint("safetensors", CONFIGS[label] | changes, hf_arrays(CONFIGS[label]))


RENAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_checkpoint(label: str, **changes: Any) -> FakeCheckpoint:
    """The same weights as llama.cpp's converter would store them; `changes` are keys after the architecture."""
    config = CONFIGS[label]
    arch = {"mistral": "llama", "gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    arrays: dict[str, np.ndarray] = {}
    for name, w in hf_arrays(config).items():
        short = name
        for old, new in RENAMES.items():
            short = short.replace(old, new)
        after_attention = "post_attention_norm" if arch == "gemma3" else "ffn_norm"
        short = short.replace("post_attention_layernorm", after_attention)
        if arch == "gemma3" and "norm" in short:
            w = w + np.float32(1.0)
        if arch == "llama" and (part := short.split("attn_")[-1][0]) in heads and short.endswith(f"{part}.weight"):
            w = np.ascontiguousarray(w.reshape(heads[part], 2, -1, w.shape[-1]).swapaxes(1, 2).reshape(w.shape))
        arrays[short] = w
    values = {
        "block_count": config["num_hidden_layers"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "context_length": config["max_position_embeddings"],
        "rope.freq_base": config["rope_theta"],
    }
    if "head_dim" in config:
        values |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    metadata = {f"{arch}.{k}": v for k, v in (values | changes).items()}
    return FakeCheckpoint("gguf", {"general.architecture": arch, **metadata}, arrays)

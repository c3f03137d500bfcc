"""A tiny llama-architecture GGUF with random weights, written on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [
    "Ġ t",
    "Ġ a",
    "h e",
    "i n",
    "r e",
    "o n",
    "Ġt he",
    "a t",
    "e r",
    "Ġ s",
    "Ġ w",
    "o u",
    "l l",
    "Ġ c",
    "e n",
    "o r",
]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The 256 printable characters byte-level BPE writes bytes with, in byte order."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = iter(range(0x100, 0x200))
    return [chr(b) if b in kept else chr(next(moved)) for b in range(256)]


def write_tiny_gguf(
    path: Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 96,
    context: int = 512,
    tied: bool = False,
    quant: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    seed: int = 0,
    chat_template: str | None = CHAT_TEMPLATE,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Writes a llama-architecture GGUF with random weights and a byte-level BPE vocabulary; returns its path.

    `quant` is the type of every matrix, of the formats gguf can write (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0);
    `metadata` adds or overrides string, bool, int and float keys.
    """
    tokens = [*SPECIALS, *byte_alphabet(), *(m.replace(" ", "") for m in MERGES)]
    types = [gguf.TokenType.CONTROL] * len(SPECIALS) + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIALS))
    head_dim = hidden // heads
    values: dict[str, Any] = {
        "llama.context_length": context,
        "llama.embedding_length": hidden,
        "llama.block_count": layers,
        "llama.feed_forward_length": ffn,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
    if chat_template is not None:
        values["tokenizer.chat_template"] = chat_template
    values |= metadata or {}

    writer = gguf.GGUFWriter(path, "llama")
    for key, value in values.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](key, value)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(MERGES)

    rng = np.random.default_rng(seed)

    def matrix(name: str, rows: int, cols: int) -> None:
        w = (rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)
        writer.add_tensor(
            name, w if quant == gguf.GGMLQuantizationType.F32 else gguf.quantize(w, quant), raw_dtype=quant
        )

    def norm(name: str) -> None:
        writer.add_tensor(name, rng.uniform(0.5, 1.5, hidden).astype(np.float32))

    matrix("token_embd.weight", len(tokens), hidden)
    norm("output_norm.weight")
    if not tied:
        matrix("output.weight", len(tokens), hidden)
    for i in range(layers):
        norm(f"blk.{i}.attn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_k.weight", kv_heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_v.weight", kv_heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_output.weight", hidden, heads * head_dim)
        norm(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.ffn_gate.weight", ffn, hidden)
        matrix(f"blk.{i}.ffn_up.weight", ffn, hidden)
        matrix(f"blk.{i}.ffn_down.weight", hidden, ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

"""Builds the tokenizer a GGUF file describes: byte-level BPE (``gpt2``) or SentencePiece BPE (``llama``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from narrows.text.errors import TokenizerError
from narrows.text.merges import kept_merges
from narrows.text.pretokenizers import PRETOKENIZERS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
KEY = "tokenizer.ggml."


def _byte_chars() -> dict[str, int]:
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [b for b in range(0x100) if b not in kept]
    return {chr(b): b for b in kept} | {chr(0x100 + i): b for i, b in enumerate(moved)}


BYTE_CHARS = _byte_chars()  # how byte-level vocabularies write each byte


def build_gguf(metadata: dict[str, Any], identity: str) -> Tokenizer:
    """The tokenizer described by a GGUF file's metadata; ``identity`` is the file's, to keep derived merges under.

    Raises TokenizerError naming the key that is missing or wrong.
    """
    kind = metadata.get(KEY + "model")
    if kind not in ("gpt2", "llama"):
        raise TokenizerError(f"{KEY}model is {kind!r}; supported: gpt2 (byte-level BPE) and llama (SentencePiece BPE)")
    tokens = tokens_of(metadata)
    if len(set(tokens)) != len(tokens):
        raise TokenizerError(f"{KEY}tokens holds the same token twice")
    types = types_of(metadata, len(tokens))
    try:
        if kind == "gpt2":
            return _byte_level(metadata, tokens, types)
        return _sentencepiece(metadata, tokens, types, identity)
    except TokenizerError:
        raise
    except Exception as error:  # the library reports a merge of unknown tokens and the like as bare Exception
        raise TokenizerError(f"the vocabulary of the GGUF file is inconsistent: {error}") from error


def tokens_of(metadata: dict[str, Any]) -> list[str]:
    """Token strings in id order, as the file spells them."""
    tokens = metadata.get(KEY + "tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens):
        raise TokenizerError(f"{KEY}tokens must be a list of strings; the file carries no vocabulary")
    return tokens


def types_of(metadata: dict[str, Any], num_tokens: int) -> list[int]:
    """Token types in id order (NORMAL for all when the file has none)."""
    types = metadata.get(KEY + "token_type")
    if types is None:
        return [NORMAL] * num_tokens
    types = np.asarray(types)
    if types.shape != (num_tokens,) or types.dtype.kind not in "iu":
        raise TokenizerError(f"{KEY}token_type must hold one integer for each of {num_tokens} tokens")
    return types.tolist()


def token_id(metadata: dict[str, Any], name: str, num_tokens: int) -> int | None:
    """The id a file gives to the token called ``name`` (bos, eos, …), or None."""
    value = metadata.get(f"{KEY}{name}_token_id")
    if value is None:
        return None
    if not isinstance(value, (int, np.integer)) or not 0 <= value < num_tokens:
        raise TokenizerError(f"{KEY}{name}_token_id is {value!r}, not an id in 0..{num_tokens - 1}")
    return int(value)


def _byte_level(metadata: dict[str, Any], tokens: list[str], types: list[int]) -> Tokenizer:
    name = metadata.get(KEY + "pre")
    pre = PRETOKENIZERS.get(str(name))
    if pre is None:
        known = ", ".join(sorted(PRETOKENIZERS))
        raise TokenizerError(f"{KEY}pre is {name!r}, a pre-tokeniser this version does not know; known: {known}")
    merges = metadata.get(KEY + "merges")
    if not isinstance(merges, list):
        raise TokenizerError(f"{KEY}merges must be a list of strings")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if wrong := next((m for m, p in zip(merges, pairs, strict=True) if len(p) != 2), None):
        raise TokenizerError(f"{KEY}merges holds {wrong[:80]!r}, which is not two tokens with a space between")
    vocab = {token: i for i, token in enumerate(tokens)}
    out = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre.ignore_merges))
    if pre.nfc:
        out.normalizer = normalizers.NFC()
    out.pre_tokenizer = pre.build()
    out.decoder = decoders.ByteLevel()
    _add_tokens(out, tokens, types)
    return out


def _sentencepiece(metadata: dict[str, Any], tokens: list[str], types: list[int], identity: str) -> Tokenizer:
    scores = np.array(metadata.get(KEY + "scores", ()))
    if scores.dtype.kind not in "fiu" or scores.shape != (len(tokens),) or np.isnan(scores).any():
        raise TokenizerError(f"{KEY}scores must hold one number for each of {len(tokens)} tokens")
    scores = scores.astype(np.float64)
    unknown = types.index(UNKNOWN) if UNKNOWN in types else token_id(metadata, "unknown", len(tokens)) or 0
    # Runs of spaces are declared as user-defined tokens, but the reference tokenizers reach them by merging, and
    # before all else: so they are spelt like other pieces and come first in the order of merges.
    runs = [i for i, t in enumerate(tokens) if types[i] == USER_DEFINED and t and not t.strip(" ")]
    spelt, types = list(tokens), list(types)
    for i in runs:
        spelt[i], types[i], scores[i] = "▁" * len(tokens[i]), NORMAL, np.inf
    mergeable = {t: i for i, t in enumerate(spelt) if types[i] == NORMAL}
    vocab = {token: i for i, token in enumerate(spelt)}
    merges = kept_merges(mergeable, scores, identity)
    out = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=spelt[unknown], fuse_unk=True, byte_fallback=True))
    space = normalizers.Replace(" ", "▁")
    prefix = bool(metadata.get(KEY + "add_space_prefix", True))
    out.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if prefix else space
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    out.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    _add_tokens(out, spelt, types)
    return out


def _add_tokens(out: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control and user-defined tokens are found in text whole; only control tokens are special."""
    kinds = ((t, kind) for t, kind in zip(tokens, types, strict=True) if kind in (CONTROL, USER_DEFINED) and t)
    out.add_tokens([AddedToken(t, normalized=False, special=kind == CONTROL) for t, kind in kinds])

"""The merges of a SentencePiece vocabulary, which GGUF files leave out; derived once for each file, then kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from narrows.text.errors import TokenizerError

from ..machine import cache_dir, keep

MAX_PIECE_CHARS = 256  # deriving takes the square of a token's length
WORTH_KEEPING = 50_000  # tokens; smaller vocabularies are derived in no time

Merges = list[tuple[str, str]]


def derive_merges(vocab: dict[str, int], scores: np.ndarray) -> Merges:
    """Every way of making a token out of two, best score first; of one token, the longest left part first.

    ``vocab`` gives the id of each token that may be merged or merged into, ``scores`` [V] is indexed by id.
    """
    tokens = list(vocab)
    longest = max(tokens, key=len, default="")
    if len(longest) > MAX_PIECE_CHARS:
        raise TokenizerError(f"token {vocab[longest]} has {len(longest)} characters; the limit is {MAX_PIECE_CHARS}")
    order = np.argsort(-scores[list(vocab.values())], kind="stable")
    return [
        (left, right)
        for token in map(tokens.__getitem__, order.tolist())
        for cut in range(len(token) - 1, 0, -1)
        if (left := token[:cut]) in vocab and (right := token[cut:]) in vocab
    ]


def kept_merges(vocab: dict[str, int], scores: np.ndarray, identity: str) -> Merges:
    """``derive_merges`` of the file with this identity, from the cache when an earlier run left it there."""
    if len(vocab) < WORTH_KEEPING:
        return derive_merges(vocab, scores)
    path = cache_dir() / "tokenizers" / f"{identity}.merges.npy"
    found = _read(path, vocab)
    if found is None:
        found = derive_merges(vocab, scores)
        pairs = np.array([(vocab[a], vocab[b]) for a, b in found], np.int32)
        keep(path, lambda file: np.save(file, pairs))
    return found


def _read(path: Path, vocab: dict[str, int]) -> Merges | None:
    """The merges kept in ``path``, int32 [n, 2] ids; None when there are none or they do not fit the vocabulary."""
    try:
        pairs = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError):
        return None
    names = {i: token for token, i in vocab.items()}
    if pairs.dtype != np.int32 or pairs.ndim != 2 or pairs.shape[1] != 2:
        return None
    try:
        merges = [(names[a], names[b]) for a, b in pairs.tolist()]
    except KeyError:
        return None
    return merges if all(a + b in vocab for a, b in merges) else None

"""The default model in the native core against the same weights in plain numpy: what eight-bit activations cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from narrows import ref
from narrows.checkpoints import open_checkpoint
from narrows.loader import load
from narrows.models import declare
from narrows.native import PAGE_SIZE
from narrows.types import ForwardBatch
from narrows.weights import Packed, load_weights, unpack

# Lewis Carroll, Alice's Adventures in Wonderland (1865).
TEXT = """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to
do: once or twice she had peeped into the book her sister was reading, but it had no pictures or
conversations in it, "and what is the use of a book," thought Alice "without pictures or
conversations?"

So she was considering in her own mind (as well as she could, for the hot day made her feel very
sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of
getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her.

There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to
hear the Rabbit say to itself, "Oh dear! Oh dear! I shall be late!" (when she thought it over
afterwards, it occurred to her that she ought to have wondered at this, but at the time it all
seemed quite natural); but when the Rabbit actually took a watch out of its waistcoat-pocket, and
looked at it, and then hurried on, Alice started to her feet, for it flashed across her mind that
she had never before seen a rabbit with either a waistcoat-pocket, or a watch to take out of it.
"""


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_logits_of_the_default_model(smollm2_path: Path) -> None:
    loaded = load(smollm2_path, num_threads=2, max_model_len=256)
    ids = np.array(loaded.tokenizer.encode(TEXT)[:256], np.int32)
    assert len(ids) == 256
    rows = np.arange(256, dtype=np.int32)
    pages = np.arange(256 // PAGE_SIZE, dtype=np.int32)[None]
    ends = np.array([256], np.int32)
    got = loaded.model.forward(ForwardBatch(ids, rows, np.array([0, 256], np.int32), ends, pages, rows)).logits

    ckpt = open_checkpoint(smollm2_path)
    spec, sources = declare(ckpt)
    tensors = load_weights(ckpt, spec, sources)
    plain = {name: unpack(w) if isinstance(w, Packed) else w for name, w in tensors.items()}
    p, q = log_softmax(ref.forward(spec, plain, ids)), log_softmax(got)
    divergence = (np.exp(p) * (p - q)).sum(-1)
    same = (p.argmax(-1) == q.argmax(-1)).mean()
    print(f"KL {divergence.mean():.2e} mean, {divergence.max():.2e} at most; the same first choice on {same:.1%}")
    assert divergence.mean() < 2e-3
    assert same >= 0.98
    assert -p[np.arange(255), ids[1:]].mean() < 3.5  # the oracle itself reads English

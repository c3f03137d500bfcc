"""Embeddings against the oracle, and the same bits alone, batched, in chunks and beside answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from narrows import LLM, SamplingParams, ref
from narrows.checkpoints import open_checkpoint
from narrows.models import declare
from narrows.prompts import RequestError
from narrows.weights import Packed, load_weights, unpack

RNG = np.random.default_rng(5)
PROMPTS = [RNG.integers(5, 270, n).tolist() for n in (1, 63, 64, 65, 300, 7)]  # around pages and partitions
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to the nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(x.dtype)


def test_embeddings_are_the_oracles(tiny_path: Path) -> None:
    """In float64, with keys and values rounded as the cache rounds them.

    What is left is float32 arithmetic, and entries of the cache that it made round to their other neighbour, at most
    2^-8 of their size away. How far that carries is measured on the oracle, as for logits in test_forward.py.
    """
    ckpt = open_checkpoint(tiny_path)
    spec, sources = declare(ckpt)
    tensors = load_weights(ckpt, spec, sources, "auto", cache=False, num_threads=1)
    plain = {name: unpack(w) if isinstance(w, Packed) else w for name, w in tensors.items()}

    def oracle(ids: list[int], store: Callable[[np.ndarray], np.ndarray] = bfloat16) -> np.ndarray:
        mean = ref.hidden(spec, plain, ids, dtype=np.float64, store=store).mean(0)
        return mean / np.linalg.norm(mean)

    def moved(entries: np.ndarray) -> np.ndarray:
        return entries * (1 + 2.0**-9 * RNG.choice([-1, 1], entries.shape))

    found = LLM(tiny_path, num_threads=1, cache=False).embed(PROMPTS)
    assert found.shape == (len(PROMPTS), spec.hidden_size) and found.dtype == np.float32
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    for ids, got in zip(PROMPTS, found, strict=True):
        exact = oracle(ids, store=lambda entries: entries)
        reach = np.sqrt(np.mean([np.sum((oracle(ids, moved) - exact) ** 2) for _ in range(4)]))
        assert reach < 0.02
        assert np.linalg.norm(got - oracle(ids)) <= max(reach, 1e-5)


@pytest.mark.parametrize(
    ("stack", "threads"),
    [("", 2), ("scheduler=continuous:budget=17", 1), ("draft=ngram pace=fixed scheduler=continuous:budget=128", 2)],
)
def test_same_bits_in_any_company(stack: str, threads: int, tiny_path: Path) -> None:
    llm = LLM(tiny_path, num_threads=1, cache=False)
    alone = [llm.embed([prompt]).tobytes() for prompt in PROMPTS]
    answers = [out.outputs[0].token_ids for out in llm.generate(PROMPTS, GREEDY)]
    other = LLM(tiny_path, stack, num_threads=threads, cache=False)
    assert [row.tobytes() for row in other.embed(PROMPTS)] == alone
    stream = other.stream(PROMPTS[4], GREEDY)
    for _ in range(2):
        next(stream)
    assert [row.tobytes() for row in other.embed(PROMPTS)] == alone  # in the steps of the answer
    list(stream)
    assert stream.output.outputs[0].token_ids == answers[4]


def test_near_texts_are_near(smollm2_path: Path) -> None:
    llm = LLM(smollm2_path, num_threads=2, max_model_len=256)
    texts = ["The cat sat on the mat.", "A cat was sitting on a rug.", "Interest rates rose by half a percent."]
    a, b, c = llm.embed(texts)
    assert a @ b > a @ c
    assert np.array_equal(llm.embed(texts[0])[0], a)


def test_odd_prompts(tiny_path: Path) -> None:
    llm = LLM(tiny_path, num_threads=1, cache=False)
    assert llm.embed([]).shape == (0, 64)
    assert llm.embed([5, 6, 7]).shape == (1, 64)
    with pytest.raises(RequestError, match="token 100000"):
        llm.embed([[5], [100000]])
    assert not llm.engine.requests

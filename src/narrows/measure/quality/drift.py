"""How far a long answer drifts: greedy texts of the baseline, and what the model would have written at every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from .base import Item, Metric, Record
from .openers import OPENERS, continuations, opening
from .teacher import divergence, forced_logits
from .text import check_vocabularies, rounded

if TYPE_CHECKING:
    from narrows import LLM

TOGETHER = 4  # texts written at once: what an interruption can lose
NGRAM = 4
BUCKETS = (0, 64, 256, 1024, 4096, 16384)


@dataclass(frozen=True, slots=True)
class Drift:
    """Long greedy generation from chat openers, `tokens` tokens of each of `openers`.

    Along the baseline's text the model's choices say where its own greedy text would first differ, and its divergence
    says how far it is by then: a model that only errs early differs from one whose errors grow with the context.
    """

    tokens: int = 1024
    openers: int = 8

    joint: ClassVar[bool] = True
    dataset: ClassVar[str | None] = None
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("kl", "lower", weight="tokens"),
        *(Metric(f"kl_{start}_{end}", "lower", weight=f"tokens_{start}_{end}") for start, end in pairwise(BUCKETS)),
        Metric("p99", "lower", "p99", "each"),
        Metric("top1", "higher", key="same", weight="tokens"),
        Metric("first_divergence", "higher"),
        Metric("repetition", "lower", baseline="repetition_baseline"),
    )

    def __post_init__(self) -> None:
        if not 2 <= self.tokens <= BUCKETS[-1]:
            raise ValueError(f"tokens is {self.tokens}; it must be between 2 and {BUCKETS[-1]}")
        if not 1 <= self.openers <= len(OPENERS):
            raise ValueError(f"openers is {self.openers}; it must be between 1 and {len(OPENERS)}")

    def quick(self) -> Drift:
        return replace(self, tokens=384, openers=4)

    def items(self, data: Path | None, model: LLM) -> Sequence[Item]:
        """An opener each, as token ids."""
        return [Item(f"opener/{i}", opening(model, i)) for i in range(self.openers)]

    def run(self, model: LLM, baseline: LLM | None, items: Sequence[Item]) -> Iterator[Record]:
        """`first_divergence` is in tokens, that of a text that never differs being its length."""
        assert baseline is not None
        check_vocabularies(model, baseline)
        for begin in range(0, len(items), TOGETHER):
            some = items[begin : begin + TOGETHER]
            prompts = [item.content for item in some]
            lengths = [self.tokens] * len(some)
            references = continuations(baseline, prompts, lengths)
            texts = continuations(model, prompts, lengths)
            for item, reference, text in zip(some, references, texts, strict=True):
                yield {"id": item.id, **_compare(model, baseline, item.content, reference, text)}


def _compare(model: LLM, baseline: LLM, prompt: list[int], reference: list[int], text: list[int]) -> Record:
    ids, count = [*prompt, *reference[:-1]], len(prompt)
    both = (forced_logits(m, ids, count - 1, num_prompt=count) for m in (baseline, model))
    pairs = zip(*both, strict=True)
    parts = [(divergence(p, q), p.argmax(-1) == q.argmax(-1)) for p, q in pairs]
    kl, same = (np.concatenate(part) for part in zip(*parts, strict=True))
    record: Record = {"tokens": len(kl), "kl": kl.mean(), "same": same.mean(), "each": rounded(kl)}
    for low, high in pairwise(BUCKETS):
        if len(part := kl[low:high]):
            record |= {f"kl_{low}_{high}": part.mean(), f"tokens_{low}_{high}": len(part)}
    differs = np.flatnonzero(np.not_equal(text[: len(reference)], reference[: len(text)]))
    record["first_divergence"] = int(differs[0]) if len(differs) else min(len(text), len(reference))
    return record | {"repetition": repetition(text), "repetition_baseline": repetition(reference)}


def repetition(tokens: Sequence[int]) -> float:
    """Share of a text's runs of four tokens that were in it before (seq-rep-4, Welleck et al. 2020, section 6)."""
    runs = [tuple(tokens[i : i + NGRAM]) for i in range(len(tokens) - NGRAM + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0

"""Sampling with drafts: the distribution is the target's, by chi-square over everything a toy model can say.

The target is a table of four tokens by the token before; so is the drafter's, which is another. All answers of three
tokens are counted against their exact probabilities. Wrong verifiers fail the same test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
from fake_model import chain_by_forwards
from scipy.stats import chi2
from scripted import Scripted

from narrows.drafters.base import Ask, Source, Tools
from narrows.drafters.first import First
from narrows.drafters.head import Head
from narrows.drafters.looped import Looped
from narrows.drafters.model import DraftModel
from narrows.engine import Engine
from narrows.kv.pool import KvPool
from narrows.pacers.fixed import Fixed
from narrows.reader import Chain, Chained, DraftReader
from narrows.sampling import SamplingParams, adjust, distribution
from narrows.schedulers.continuous import Continuous
from narrows.speculation import Speculation
from narrows.types import F32, Draft, ForwardBatch, ForwardOutput, Verdict
from narrows.verifiers.base import Verifier
from narrows.verifiers.greedy import Greedy
from narrows.verifiers.rejection import Rejection
from narrows.verifiers.typical import Typical

TOY = Source("model", "toy")
VOCAB, LENGTH, COUNT = 4, 3, 1200
TARGET_TABLE = np.log(np.array([[5, 3, 1, 1], [1, 1, 4, 4], [2, 5, 2, 1], [1, 2, 3, 4]], np.float32))
DRAFT_TABLE = np.log(np.array([[2, 6, 1, 1], [4, 1, 1, 4], [1, 2, 6, 1], [3, 3, 2, 2]], np.float32))
FEW = np.array([0, 2, 3], np.int32)  # what a head of few tokens may draft


@dataclass
class TableModel:
    table: F32

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        return ForwardOutput(self.table[batch.tokens[batch.logit_rows]], 0, 0, 0.0)

    def draft_chain(self, chain: Chain) -> Chained:
        return chain_by_forwards(lambda batch, _: self.forward(batch), chain)


def engine(drafter: Any, verifier: Verifier) -> Engine:
    def pool(name: str) -> KvPool:
        return KvPool(64, 4, identity=name, codec="bf16")

    reader = DraftReader("toy", TableModel(DRAFT_TABLE), pool("draft"))
    few = DraftReader("head:auto", TableModel(DRAFT_TABLE[:, FEW]), pool("few"))
    few.ids = FEW
    return Engine(
        TableModel(TARGET_TABLE),
        pool("target"),
        Continuous(),
        verifier,
        vocab_size=VOCAB,
        max_model_len=64,
        speculation=Speculation(drafter, Fixed(), {TOY: reader, Source("head", "auto"): few}),
    )


def p_value(drafter: Any, verifier: Verifier, **params: Any) -> float:
    """Of the answers of many seeds, under the exact distribution of the target."""
    settings = SamplingParams(max_tokens=LENGTH, **params)
    prompt = [0, 2]
    expected: dict[tuple[int, ...], float] = {}
    for answer in product(range(VOCAB), repeat=LENGTH):
        probability, tokens = 1.0, list(prompt)
        for token in answer:
            row = adjust(TARGET_TABLE[tokens[-1:]], tokens, len(prompt), settings, ())
            probability *= distribution(row[0], settings)[token]
            tokens.append(token)
        expected[answer] = probability * COUNT
    runs = engine(drafter, verifier)
    requests = []
    for seed in range(COUNT):
        requests.append(runs.add(prompt, settings, seed=seed * 7919 + 13))
        if len(requests) % 8 == 0:
            while runs.requests:
                runs.step()
    observed = Counter(tuple(r.output) for r in requests)
    assert not any(observed[answer] for answer, n in expected.items() if n == 0)
    cells = [(observed[a], n) for a, n in expected.items() if n >= 5]
    rest = (COUNT - sum(o for o, _ in cells), COUNT - sum(n for _, n in cells))
    if rest[1] >= 5:
        cells.append(rest)
    return float(chi2.sf(sum((o - n) ** 2 / n for o, n in cells), len(cells) - 1))


def guess(tokens: Sequence[int], k: int) -> list[int]:
    return [int(t) for t in DRAFT_TABLE.argmax(axis=1)[np.array(tokens[-1:] * k)]]


@dataclass(frozen=True)
class DrawnTree:
    """Two tokens drawn one by one from the draft model's table, and one more behind each of them."""

    max_drafted: int = 4
    sources: tuple[Source, ...] = (TOY,)

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: Ask) -> Draft | None:
        rng, settings = np.random.default_rng([ask.request.seed, len(ask.request.tokens)]), ask.request.params
        tokens: list[int] = []
        probs = []
        for parent in (ask.request.tokens[-1], ask.request.tokens[-1], 0, 1):
            probs.append(distribution(DRAFT_TABLE[parent if len(tokens) < 2 else tokens[parent]], settings))
            tokens.append(int(rng.choice(VOCAB, p=probs[-1])))
        whole = Draft(np.array(tokens, np.int32), np.array([-1, -1, 0, 1], np.int32), np.stack(probs))
        return whole.first(ask.max_tokens)


@dataclass(frozen=True)
class CertainTree:
    max_drafted: int = 5
    sources: tuple[Source, ...] = ()

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        whole = Draft(np.array([1, 3, 2, 0, 0], np.int32), np.array([-1, -1, 0, 1, 2], np.int32))
        return [whole.first(ask.max_tokens) for ask in asks]


DRAFTERS: dict[str, Any] = {
    "drawn": DraftModel("toy", k=2),
    "certain": Scripted(guess, k=2, max_drafted=2),
    "drawn tree": DrawnTree(),
    "certain tree": CertainTree(),
    "of few tokens": Head(k=2),
    "drawn, and leaves": DraftModel("toy", k=2, leaves=2),
    "looped, and leaves": Looped(DraftModel("toy", k=1, leaves=1), gate=-1.0, stages=2),
    "looped, of few tokens": Looped(Head(k=1), gate=-1.0, stages=2),
    "looped": Looped(DraftModel("toy", k=1), gate=-1.0, stages=2),
    "looped, certain and drawn": Looped(
        First((Scripted(lambda tokens, k: guess(tokens, k) if tokens[-1] == 2 else [], k=1), DraftModel("toy", k=1))),
        gate=-1.0,
        stages=3,
    ),
    "looped by token": Looped(DraftModel("toy", k=1), gate=-1.0, stages=2, rule="token"),
}
PARAMS = {
    "plain": {},
    "cold": {"temperature": 0.6},
    "top_k": {"top_k": 2},
    "top_p and min_p": {"top_p": 0.85, "min_p": 0.15, "temperature": 1.3},
    "penalties": {"presence_penalty": 0.7, "repetition_penalty": 1.4, "logit_bias": {3: 0.5}},
}


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize(
    "name", ["drawn", "certain", "drawn tree", "certain tree", "of few tokens", "drawn, and leaves"]
)
def test_rejection_keeps_the_distribution(name: str, params: str) -> None:
    assert p_value(DRAFTERS[name], Rejection(), **PARAMS[params]) > 0.01


@pytest.mark.parametrize(
    "name", ["looped", "looped, and leaves", "looped, of few tokens", "looped, certain and drawn", "looped by token"]
)
def test_loops_keep_the_distribution(name: str) -> None:
    assert p_value(DRAFTERS[name], Rejection()) > 0.01


@pytest.mark.parametrize("name", ["drawn", "of few tokens", "drawn, and leaves"])
def test_greedy_keeps_the_distribution(name: str) -> None:
    assert p_value(DRAFTERS[name], Greedy()) > 0.01


@dataclass(frozen=True)
class TakesEverything:
    """A wrong verifier."""

    lossless: ClassVar[bool] = True
    wants_probs: ClassVar[bool] = True

    def verify(self, logits: F32, draft: Draft | None, params: Any, rng: Any) -> Verdict:
        kept = [] if draft is None else draft.tokens.tolist()
        last = Rejection().verify(logits[len(kept) :], None, params, Later(rng, len(kept)))
        return Verdict([*kept, *last.tokens], list(range(len(kept))))


@dataclass(frozen=True)
class Later:
    rng: Any
    by: int

    def uniform(self, offset: int, stream: int = 0) -> float:
        return self.rng.uniform(offset + self.by, stream)


@dataclass(frozen=True)
class DropsWhatWasUnsure:
    """A wrong drafter: what it drew is thrown away for its own probability (trap 1 of loops)."""

    base: DraftModel | Head
    max_drafted: int = 2
    sources: tuple[Source, ...] = (TOY,)

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        drafts = self.base.propose(asks, tools)
        return [None if d is None or d.logprobs is None or d.logprobs.sum() < -1.0 else d for d in drafts]


def test_a_verifier_that_takes_everything_fails() -> None:
    assert p_value(DRAFTERS["drawn"], TakesEverything()) < 1e-6


@pytest.mark.parametrize("base", [DraftModel("toy", k=1), Head(k=1)], ids=["model", "head"])
def test_dropping_unsure_tokens_fails(base: Any) -> None:
    assert p_value(DropsWhatWasUnsure(base), Rejection()) < 1e-6


def test_typical_is_another_distribution_and_says_so() -> None:
    assert not Typical.lossless
    assert p_value(DRAFTERS["drawn"], Typical()) < 1e-6


def test_typical_with_nothing_tolerated_is_exact() -> None:
    assert p_value(DRAFTERS["drawn"], Typical(epsilon=2, delta=float("inf"))) > 0.01


def test_rejection_takes_all_of_a_drafter_that_is_right() -> None:
    """The residual of equal distributions is never drawn from."""
    runs = engine(DraftModel("toy", k=2), Rejection())
    runs.speculation.readers[TOY].model.table = TARGET_TABLE  # type: ignore[union-attr]
    for seed in range(50):
        runs.add([0, 2], SamplingParams(max_tokens=7), seed=seed)
        while runs.requests:
            runs.step()
    assert sum(runs.ledger.drafts.accepted) == sum(runs.ledger.drafts.drafted) == 200


@pytest.mark.parametrize("name", ["drawn", "certain tree"])
@pytest.mark.parametrize("verifier", [Greedy(), Rejection(), Typical()])
def test_at_temperature_zero_every_verifier_is_greedy(verifier: Verifier, name: str) -> None:
    runs = engine(DRAFTERS[name], verifier)
    request = runs.add([0, 2], SamplingParams(temperature=0, max_tokens=9))
    while runs.requests:
        runs.step()
    token, plain = 2, []
    for _ in range(9):
        token = int(TARGET_TABLE[token].argmax())
        plain.append(token)
    assert request.output == plain

"""Heads in the engine: which states they read, what of their own is replaced, and the tokens of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_head import FakeHead, engine_with_head, head_reader
from fake_model import drain, expected, generate, logits_after, make_engine, random_prompt
from scripted import Bushy, Scripted

from narrows.drafters.base import Ask, Tools
from narrows.drafters.first import First
from narrows.drafters.head import Head
from narrows.drafters.looped import Looped
from narrows.drafters.ngram import NGram
from narrows.heads import MOST
from narrows.sampling import SamplingParams
from narrows.schedulers.continuous import Continuous
from narrows.speculation import PAUSE
from narrows.types import Draft

RNG = np.random.default_rng(7)
PROMPTS = [random_prompt(RNG) for _ in range(8)]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
LONG = SamplingParams(temperature=0, max_tokens=48)
SAMPLED = SamplingParams(temperature=0.9, seed=5, max_tokens=24, top_p=0.95, frequency_penalty=0.4)


class Sometimes(Bushy):
    """After every second token a tree, whose accepted tokens the target has to read again."""

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        drafts = super().propose(asks, tools)
        return [draft if len(ask.request.tokens) % 2 else None for ask, draft in zip(asks, drafts, strict=True)]


DRAFTERS: dict[str, Any] = {
    "head": Head(),
    "head with leaves": Head(k=2, leaves=3),
    "looped": Looped(Head(k=2), gate=float("-inf")),
    "by token": Looped(Head(k=2), gate=-9, rule="token"),
    "ngram|head": First((NGram(min_n=1, k=3), Head())),
    "looped ngram|head": Looped(First((NGram(k=2, min_n=1), Head(k=2))), gate=float("-inf")),
    "tree|head": First((Sometimes(expected), Head())),
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "options",
    [{}, {"page_size": 4}, {"scheduler": Continuous(budget=5)}, {"num_pages": 9, "max_model_len": 70}],
    ids=["roomy", "small pages", "small budget", "preempted"],
)
def test_same_tokens_as_without(name: str, params: SamplingParams, options: dict[str, Any]) -> None:
    plain = generate(make_engine(**options), PROMPTS, params)
    engine, head = engine_with_head(DRAFTERS[name], **options)
    assert generate(engine, PROMPTS, params) == plain
    assert head.known["target"] > 0


@pytest.mark.parametrize("k", [1, 3, 5])
def test_own_states_are_read_while_drafting_and_replaced_by_the_targets(k: int) -> None:
    """The fake head refuses to read a token with the target's state while anything before it was read with its own."""
    engine, head = engine_with_head(Head(k=k))
    [output] = generate(engine, PROMPTS[:1], GREEDY)
    assert output == expected(PROMPTS[0], 24)
    drafts = engine.ledger.drafts
    assert drafts.accepted == drafts.drafted
    assert head.known["none"] == 1  # the first token
    assert head.known["own"] == drafts.num_drafted - drafts.num_drafts


def test_drafts_go_on_from_own_states_over_stages() -> None:
    one, _ = engine_with_head(Head(k=6))
    two, head = engine_with_head(Looped(Head(k=2), gate=float("-inf"), stages=3))
    assert generate(one, PROMPTS, GREEDY) == generate(two, PROMPTS, GREEDY)
    assert two.ledger.num_steps == one.ledger.num_steps
    assert head.known["own"] > 0


@pytest.mark.parametrize("wrong", [1, 3])
def test_a_closed_gate_is_the_base_and_an_opener_one_never_costs_forwards(wrong: int) -> None:
    """Sheet test 3, with a head that is wrong after some texts."""

    def right(tokens: np.ndarray) -> np.ndarray:
        logits = 8 * logits_after(tokens)  # sure of itself
        return np.roll(logits, 1) if int(tokens.sum()) % 4 == wrong else logits

    def forwards(drafter: Any) -> int:
        engine, _ = engine_with_head(drafter, head_reader(right=right))
        assert generate(engine, PROMPTS[:1], LONG) == [expected(PROMPTS[0], 48)]
        return engine.ledger.num_steps

    counts = [forwards(Looped(Head(k=2), gate=gate)) for gate in (0.0, -0.01, -0.25, -1.0, float("-inf"))]
    assert counts[0] == forwards(Head(k=2))
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < counts[0]


def test_stages_on_states_that_are_the_targets_are_accepted_alike() -> None:
    """Sheet test 4: a head whose own states are the target's cannot tell stages apart."""
    engine, _ = engine_with_head(Looped(Head(k=2), gate=float("-inf"), stages=2), head_reader(exact=True))
    generate(engine, PROMPTS, GREEDY)
    accepted, drafted = engine.ledger.drafts.accepted, engine.ledger.drafts.drafted
    assert sum(accepted[:2]) / sum(drafted[:2]) == sum(accepted[2:]) / sum(drafted[2:]) == 1


def test_states_of_long_prompts_are_read_as_they_come() -> None:
    engine, head = engine_with_head(num_pages=128, scheduler=Continuous(budget=100))
    sizes: list[int] = []
    head.model.before = lambda batch: sizes.append(len(batch.tokens))
    request = engine.add([*range(90)] * 8, GREEDY)
    while request.num_prompt > request.cursors["target"].num_read:
        engine.step()
        held = request.state["head"]
        assert len(held.rows) <= MOST + 2
    assert sizes[:2] == [301, 300]
    drain(engine)
    assert head.known["none"] == 1


def test_a_head_whose_drafts_do_not_pay_reads_no_prompts() -> None:
    engine, head = engine_with_head(num_pages=128, scheduler=Continuous(budget=100))
    assert engine.speculation is not None
    engine.speculation.num_proposed, head.in_use = 2 * PAUSE, False
    sizes: list[int] = []
    head.model.before = lambda batch: sizes.append(len(batch.tokens))
    request = engine.add([*range(90)] * 8, GREEDY)
    while request.num_prompt > request.cursors["target"].num_read:
        assert not sizes
        engine.step()
        assert len(request.state["head"].rows) <= MOST
    drain(engine)
    assert sizes[0] == 512  # for its first draft, a chunk at a time, with the features that are left
    assert request.output == expected([*range(90)] * 8, len(request.output))


def test_a_shared_beginning_is_shared_by_the_head() -> None:
    """Both caches hold the same pages; one state, that of the last shared token, is known to neither."""
    engine, head = engine_with_head()
    begin = list(range(40))
    generate(engine, [[*begin, 1, 2, 3]], GREEDY)
    before = dict(head.known)
    [output] = generate(engine, [[*begin, 4, 5, 6]], GREEDY)
    assert output == expected([*begin, 4, 5, 6], 24)
    assert engine.ledger.num_cached == 40
    assert head.known["none"] - before["none"] == 1
    assert head.known["target"] - before["target"] < 3 + 24


def test_a_beginning_that_only_the_target_has_is_read_without_states() -> None:
    reader = head_reader()
    engine, _ = engine_with_head(Scripted(lambda tokens, k: []), reader)
    begin = list(range(40))
    generate(engine, [begin], SamplingParams(temperature=0, max_tokens=1))  # the head never reads
    engine.speculation.drafter = Head()  # type: ignore[union-attr]
    [output] = generate(engine, [[*begin, 7]], GREEDY)
    assert output == expected([*begin, 7], 24)
    assert engine.ledger.num_cached == 40
    head = reader.head
    assert isinstance(head, FakeHead)
    assert head.known["none"] == 41


def test_states_wait_without_a_draft_and_are_read_in_time() -> None:
    """A pacer that never drafts costs a head one reading every so many tokens."""
    nothing = Scripted(lambda tokens, k: [])
    engine, head = engine_with_head(First((nothing, nothing)), num_pages=128)
    sizes: list[int] = []
    head.model.before = lambda batch: sizes.append(len(batch.tokens))
    generate(engine, [[1, 2, 3]], SamplingParams(temperature=0, max_tokens=800))
    assert len(sizes) == 3
    assert head.known["none"] == 1


def test_a_head_without_room_drafts_nothing() -> None:
    reader = head_reader(num_pages=2)
    engine, _ = engine_with_head(Head(), reader)
    assert generate(engine, PROMPTS, GREEDY) == generate(make_engine(), PROMPTS, GREEDY)
    assert engine.ledger.drafts.reasons.get("nothing to propose", 0) > 0

"""Drafters alone: what they propose, how sure they are of it, and what they remember."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_model import expected, generate, make_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Bushy, Scripted

from narrows.drafters.base import Ask, Tools
from narrows.drafters.first import First
from narrows.drafters.looped import Looped
from narrows.drafters.ngram import MAX_MATCH, NGram
from narrows.pacers.fixed import Fixed
from narrows.sampling import SamplingParams
from narrows.speculation import Speculation
from narrows.types import Draft, Request, Status

NONE = Tools({})


def request(tokens: Sequence[int]) -> Request:
    return Request("r", list(tokens), len(tokens), SamplingParams(), 0, 0.0)


def propose(drafter: Any, tokens: Sequence[int] | Request, k: int = 64, drafted: Draft | None = None) -> Draft | None:
    one = tokens if isinstance(tokens, Request) else request(tokens)
    return drafter.propose([Ask(one, k, drafted)], NONE)[0]


def ids(draft: Draft | None) -> list[int]:
    return [] if draft is None else draft.tokens.tolist()


def test_ngram_takes_the_longest_match_and_of_equals_the_latest() -> None:
    assert ids(propose(NGram(k=2), [1, 2, 3, 7, 7, 2, 3, 8, 8, 9, 1, 2, 3])) == [7, 7]
    assert ids(propose(NGram(k=2), [1, 2, 3, 7, 7, 1, 2, 3, 8, 8, 1, 2, 3])) == [8, 8]


def finished(tokens: Sequence[int], salt: str = "") -> Request:
    """A request that a corpus will have met while it ran."""
    r = Request(f"{salt} {list(tokens)}", list(tokens), len(tokens), SamplingParams(), 0, 0.0, salt)
    r.status = Status.FINISHED
    return r


def test_ngram_finds_in_its_corpus_what_other_requests_wrote() -> None:
    drafter, tools = NGram(k=4, corpus=64), Tools({})
    asked = Request("asked", [9, 1, 2], 3, SamplingParams(), 0, 0.0)
    earlier = [finished([5, 1, 2, 3, 4]), finished([1, 2, 6, 6, 6, 6, 6])]
    drafts = drafter.propose([Ask(r, 8) for r in (asked, *earlier)], tools)
    assert drafts[0] is not None and ids(drafts[0]) == [6, 6, 6, 6]  # the latest of equals
    assert ids(drafter.propose([Ask(request([5, 1, 2]), 8)], tools)[0]) == [3, 4]  # the longest, to the end of its text
    own = request([1, 2, 7, 8, 1, 2])
    assert ids(drafter.propose([Ask(own, 2)], tools)[0]) == [7, 8]  # what it saw itself goes first
    assert propose(NGram(k=4), [5, 1, 2]) is None


def test_a_corpus_is_one_salt_s_and_forgets_its_older_half() -> None:
    drafter, tools = NGram(k=2, corpus=16), Tools({})
    for i in range(8):
        drafter.propose([Ask(finished([10 * i + j for j in range(1, 6)], salt="a"), 2)], tools)
    found = [
        ids(
            drafter.propose(
                [Ask(Request(f"{i} {salt}", [10 * i + 1, 10 * i + 2], 2, SamplingParams(), 0, 0.0, salt), 2)], tools
            )[0]
        )
        for salt, i in (("a", 7), ("a", 0), ("b", 7))
    ]
    assert found == [[73, 74], [], []]
    for i in range(100):
        drafter.propose([Ask(finished([1, 2, 3], salt=str(i)), 2)], tools)
    (corpora,) = tools.state.values()
    assert len(corpora) == 64 and all(len(c.text) <= 16 for c in corpora.values())


def test_ngram_proposes_nothing_without_a_match() -> None:
    assert propose(NGram(), [1, 2, 3, 4, 5]) is None
    assert propose(NGram(min_n=3), [1, 2, 9, 1, 2]) is None
    assert propose(NGram(), [1]) is None


def test_ngram_goes_on_into_its_own_draft() -> None:
    assert ids(propose(NGram(k=7), [5, 1, 2, 3, 1, 2, 3])) == [1, 2, 3, 1, 2, 3, 1]
    assert ids(propose(NGram(k=4), [8, 8, 8])) == [8, 8, 8, 8]


def test_ngram_drafts_no_more_than_asked() -> None:
    assert len(ids(propose(NGram(k=8), [8] * 9, k=3))) == 3
    assert len(ids(propose(NGram(k=2), [8] * 9, k=3))) == 2


def test_ngram_continues_what_was_drafted() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 9, 1, 2]
    first = propose(NGram(k=2), tokens)
    assert ids(first) == [3, 4]
    assert ids(propose(NGram(k=2), tokens, drafted=first)) == [5, 6]


def test_ngram_is_surer_after_longer_matches() -> None:
    short, long = propose(NGram(k=3), [1, 2, 3, 9, 1, 2]), propose(NGram(k=3), [*range(20), 99, *range(12)])
    assert short is not None and short.logprobs is not None and long is not None and long.logprobs is not None
    assert np.exp(short.logprobs.sum()) == pytest.approx(3 / 6)  # 3/4 * 4/5 * 5/6
    assert np.exp(long.logprobs.sum()) == pytest.approx(13 / 16)


def test_ngram_branches_where_texts_went_on_differently() -> None:
    tokens = [1, 2, 3, 7, 7, 9, 2, 3, 8, 8, 5, 1, 2, 3]
    draft = propose(NGram(k=2, branches=3), tokens)
    assert draft is not None and draft.parents is not None
    assert (ids(draft), draft.parents.tolist()) == ([7, 7, 8, 8], [-1, 0, -1, 2])
    assert draft.paths() == [[7], [7, 7], [8], [8, 8]]
    assert (draft.depth, draft.children(-1), draft.children(0)) == (2, [0, 2], [1])
    short = propose(NGram(k=2, branches=3), tokens, k=3)
    assert short is not None and short.parents is not None
    assert (ids(short), short.parents.tolist()) == ([7, 7, 8], [-1, 0, -1])


def brute_force(tokens: list[int], min_n: int, k: int) -> list[int]:
    best, where = 0, -1
    for place in range(len(tokens) - 1):
        length = 0
        while length < MAX_MATCH and length <= place and tokens[place - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        if length >= min_n and length >= best:
            best, where = length, place
    draft = list(tokens)
    for i in range(k if best else 0):
        draft.append(draft[where + 1 + i])
    return draft[len(tokens) :]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 3), st.integers(1, 5))
def test_ngram_is_its_definition_as_the_text_grows(tokens: list[int], min_n: int, step: int) -> None:
    drafter, growing = NGram(k=6, min_n=min_n, places=4096), request(tokens[:1])
    for end in range(1, len(tokens) + 1, step):
        growing.tokens = tokens[:end]
        assert ids(propose(drafter, growing)) == brute_force(growing.tokens, min_n, 6)


def test_ngram_work_is_bounded_on_texts_that_repeat_themselves() -> None:
    one = request([7] * 30_000)
    propose(NGram(), one)
    before = len(one.state)
    began = time.process_time()
    for _ in range(100):
        one.tokens.append(7)
        assert ids(propose(NGram(k=4), one)) == [7] * 4
    assert time.process_time() - began < 1  # 30,000 comparisons a step would take twenty
    assert len(one.state) == before


def test_ngram_keeps_interleaved_requests_apart() -> None:
    a, b, drafter = request([1, 2, 3, 1, 2]), request([1, 2, 4, 1, 2]), NGram(k=1)
    for _ in range(2):
        assert [ids(d) for d in drafter.propose([Ask(a, 8), Ask(b, 8)], NONE)] == [[3], [4]]
        assert ids(propose(drafter, b)) == [4]


def test_first_asks_the_next_only_where_there_is_no_proposal() -> None:
    asked: list[list[int]] = []

    def second(tokens: Sequence[int], k: int) -> list[int]:
        asked.append(list(tokens))
        return [9]

    drafter = First((NGram(k=1), Scripted(second), Scripted(lambda tokens, k: [])))
    drafts = drafter.propose([Ask(request(t), 8) for t in ([1, 2, 3, 1, 2], [1, 2, 3])], NONE)
    assert [ids(draft) for draft in drafts] == [[3], [9]]
    assert asked == [[1, 2, 3]]
    assert (drafter.max_drafted, drafter.sources) == (4, ())


def counting(sureness: float, **options: Any) -> int:
    """Tokens that a loop over stages of two drafts, each token being this sure."""
    base = Scripted(lambda tokens, k: [len(tokens)] * k, k=2, logprob=sureness, max_drafted=2)
    return len(ids(propose(Looped(base, **options), [1])))


def test_the_gate_is_per_stage_and_what_failed_it_stays() -> None:
    assert counting(-0.3) == 2  # -0.6 is below -0.5, and still proposed
    assert counting(-0.2) == 8  # -0.4 a stage: never below, however many
    assert counting(-0.2, stages=3) == 6
    assert counting(-0.2, gate=-0.1) == 2
    assert counting(-5, gate=float("-inf")) == 8
    assert counting(-1e-9, gate=0) == 2


def test_the_rule_by_token_sums_over_everything_drafted() -> None:
    assert counting(-0.2, rule="token") == 3  # -0.4, then -0.6
    assert counting(-0.1, rule="token") == 6


def test_loops_end_at_end_tokens_and_at_the_room_there_is() -> None:
    base = Scripted(lambda tokens, k: list(range(len(tokens), len(tokens) + k)), k=2, max_drafted=2)
    assert ids(propose(Looped(base), [0], k=5)) == [1, 2, 3, 4, 5]
    [draft] = Looped(base).propose([Ask(request([0]), 8)], Tools({}, end_ids={3}))
    assert ids(draft) == [1, 2, 3, 4]


def test_a_tree_ends_a_loop() -> None:
    class Grows(Bushy):
        def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
            return super().propose(asks, tools) if asks[0].drafted else Scripted(self.guess, k=2).propose(asks, tools)

    draft = propose(Looped(Grows(lambda tokens, k: [5] * k, k=3)), [0])
    assert draft is not None and draft.parents is not None
    assert (ids(draft), draft.parents.tolist()) == ([5, 5, 6, 5, 7], [-1, 0, 1, 1, 1])


def test_one_request_of_a_batch_does_not_wait_for_the_loops_of_another() -> None:
    base = Scripted(lambda tokens, k: [] if len(tokens) == 3 else [0], k=1, max_drafted=1)
    asks = [Ask(request([0]), 8), Ask(request([0, 0, 0]), 8), Ask(request([0, 0, 0, 0]), 2)]
    assert [len(ids(draft)) for draft in Looped(base, stages=4).propose(asks, NONE)] == [2, 0, 2]


def test_a_closed_gate_is_the_base_and_an_opener_one_never_costs_forwards() -> None:
    def half_right(tokens: Sequence[int], k: int) -> list[int]:
        guess = expected(tokens, k)
        return [*guess[:-1], guess[-1] ^ 1] if sum(tokens) % 3 == 0 else guess

    def forwards(drafter: Any) -> int:
        engine = make_engine(speculation=Speculation(drafter, Fixed()))
        params = SamplingParams(temperature=0, max_tokens=48)
        assert generate(engine, [[1, 2, 3]], params) == [expected([1, 2, 3], 48)]
        return engine.ledger.num_steps

    base = Scripted(half_right, k=2, logprob=-0.2, max_drafted=2)
    counts = [forwards(Looped(base, gate=gate)) for gate in (0.0, -0.25, -0.5, -1.0, float("-inf"))]
    assert counts[0] == forwards(base)
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < counts[0]

"""Under load: owners share the engine, priority orders what one owner asks, and answers go on while prompts are read.

Everything is counted in rows of steps, so that it holds on any machine.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import pytest
from fake_model import drain, expected, make_engine

from narrows.engine import Engine
from narrows.sampling import SamplingParams
from narrows.schedulers.continuous import Continuous
from narrows.types import TARGET, Request

SHORT = SamplingParams(temperature=0, max_tokens=2)


def answer(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def ends(engine: Engine) -> list[str]:
    """Owners of the answers, in the order in which they end."""
    return [result.request.owner for result in drain(engine) if result.finish_reason]


@pytest.mark.parametrize("max_num_seqs", [1, 2, 8])
def test_one_request_does_not_wait_for_anothers_fifty(max_num_seqs: int) -> None:
    engine = make_engine(scheduler=Continuous(budget=32, max_num_seqs=max_num_seqs))
    for i in range(50):
        engine.add([i] * 20, SHORT, owner="many")
    for _ in range(4):
        engine.step()
    engine.add([60] * 20, SHORT, owner="one")
    num_before = ends(engine).index("one")
    assert num_before <= 2 * max_num_seqs  # those under way, and those that end in the same steps


def test_long_prompts_do_not_hold_up_another_owners_short_one() -> None:
    """It is read beside them, not after them."""
    engine = make_engine(num_pages=400, scheduler=Continuous(budget=32))
    long = [engine.add([i] * 960, SHORT, owner="long") for i in range(3)]
    engine.step()
    engine.add([60] * 20, SHORT, owner="short")
    for _ in range(3):
        engine.step()
    assert all(not request.output for request in long)
    assert ends(engine)[:1] == ["long"]  # the short one has ended


def test_owners_get_equal_shares_whatever_they_ask() -> None:
    """In tokens read, while both have something to read: many short prompts against few long ones."""
    engine = make_engine(num_pages=400, scheduler=Continuous(budget=32))
    long = [engine.add([1, i] * 150, SHORT, owner="long") for i in range(4)]
    short = [engine.add([i] * 15, SHORT, owner="short") for i in range(80)]

    def read(requests: list[Request]) -> int:
        return sum(len(r.tokens) - 1 if r.finish_reason else r.cursors[TARGET].num_read for r in requests)

    while all(any(not r.output for r in requests) for requests in (long, short)):
        engine.step()
        assert abs(read(long) - read(short)) <= 2 * 32
    assert read(long) > 1000


def test_an_owner_that_was_away_has_not_saved_up_turns() -> None:
    engine = make_engine(num_pages=400, scheduler=Continuous(budget=32, max_num_seqs=1))
    engine.add([1] * 3, answer(1), owner="idle")
    drain(engine)
    for i in range(20):
        engine.add([i] * 30, answer(1), owner="busy")
    for _ in range(8):
        engine.step()
    for i in range(10):
        engine.add([40 + i] * 30, answer(1), owner="idle")
    order = ends(engine)[:16]
    assert Counter(order) == {"busy": 8, "idle": 8}
    assert max(len(list(run)) for _, run in groupby(order)) <= 2


def test_a_turn_at_a_time_in_order_of_arrival_within_an_owner() -> None:
    engine = make_engine(scheduler=Continuous(budget=16, max_num_seqs=1))
    requests = [engine.add([i] * 10, answer(1), owner="ab"[i % 2]) for i in range(6)]
    done = [result.request.id for result in drain(engine) if result.finish_reason]
    assert done == [request.id for request in requests]


def test_lower_priority_is_earlier_and_among_equals_the_first_to_come() -> None:
    engine = make_engine(scheduler=Continuous(budget=16, max_num_seqs=1))
    ids = {engine.add([i] * 10, SHORT, priority=p).id: (p, i) for i, p in enumerate([5, 0, 5, -3, 0])}
    done = [ids[result.request.id] for result in drain(engine) if result.finish_reason]
    assert done == sorted(done)


def test_priority_helps_nobody_against_another_owner() -> None:
    engine = make_engine(scheduler=Continuous(budget=16, max_num_seqs=1))
    for i in range(20):
        engine.add([i] * 10, SHORT, owner="pushy", priority=-(1 << 31))
    engine.add([50] * 10, SHORT, owner="polite", priority=9)
    assert ends(engine).index("polite") <= 1


def test_answers_go_on_in_every_step_while_long_prompts_arrive() -> None:
    """No step is larger than the budget, and each answer under way gets a token in each."""
    engine = make_engine(num_pages=600, scheduler=Continuous(budget=24, max_num_seqs=16))
    sizes: list[int] = []
    engine.model.before = lambda batch: sizes.append(len(batch.tokens))  # type: ignore[attr-defined]
    answers = [engine.add([i] * 5, answer(60), owner=f"user{i}") for i in range(6)]
    while any(not request.output for request in answers):
        engine.step()
    for i in range(4):
        engine.add([9, i] * 200, SHORT, owner=f"reader{i % 2}")
    while any(request.finish_reason is None for request in answers):
        under_way = [request for request in answers if request.finish_reason is None]
        before = [len(request.output) for request in under_way]
        engine.step()
        assert [len(request.output) for request in under_way] == [n + 1 for n in before]
    drain(engine)
    assert max(sizes) == 24
    assert answers[0].output == expected([0] * 5, 60)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_starves_when_pages_run_out(seed: int) -> None:
    """Owners, priorities and long answers on too few pages: all end, with the tokens they would have had alone."""
    import random

    rng = random.Random(seed)
    engine = make_engine(num_pages=12, page_size=4, max_model_len=48, scheduler=Continuous(budget=10, max_num_seqs=6))
    wanted = []
    for _ in range(24):
        prompt, n = [rng.randrange(90) for _ in range(rng.randint(1, 20))], rng.randint(1, 25)
        request = engine.add(prompt, answer(n), owner=rng.choice("abc"), priority=rng.randint(-2, 2))
        wanted.append((request, expected(prompt, n)))
        engine.step()
    drain(engine)
    assert all(request.output == tokens for request, tokens in wanted)
    assert engine.ledger.num_preemptions > 0

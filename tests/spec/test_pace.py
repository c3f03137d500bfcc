"""How much is drafted: from costs that a test makes up, and from a clock that it turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from fake_model import FakeModel, drain, expected, make_engine
from scripted import Scripted

from narrows.costs import FORGET, MeasuredCosts
from narrows.pacers.base import Costs, Pace
from narrows.pacers.goodput import UNPROFITABLE, Goodput
from narrows.sampling import SamplingParams
from narrows.speculation import LONG_REST, REST, Speculation
from narrows.types import F64, I32, ForwardBatch, ForwardOutput, Request


@dataclass
class GivenCosts:
    seconds: Callable[[int], float]  # of so many rows
    drafting: float
    rates: Sequence[float]
    untried: float = 0.0
    trial: float = 1.0

    def verify(self, num_rows: I32) -> F64:
        return np.array([self.seconds(rows) for rows in num_rows.tolist()], float)

    def draft(self, num_tokens: I32) -> F64:
        return self.drafting * num_tokens

    def worth(self, request: Request, num_tokens: int) -> F64:
        return self.rates[int(request.id)] ** np.arange(1, num_tokens + 1)


def requests(count: int) -> list[Request]:
    return [Request(str(i), [1], 1, SamplingParams(), 0, 0.0) for i in range(count)]


def lengths(costs: GivenCosts, limits: Sequence[int]) -> list[int]:
    paces = Goodput().pace(requests(len(limits)), limits, costs)
    assert all(bool(pace.reason) == (pace.num_tokens == 0) for pace in paces)
    return [pace.num_tokens for pace in paces]


def flat(rows: int) -> float:
    return 1.0


def test_rows_that_cost_nothing_are_used_to_the_limit() -> None:
    assert lengths(GivenCosts(flat, 0, [0.5]), [8]) == [8]


def test_a_dear_drafter_with_few_hits_is_not_used() -> None:
    assert lengths(GivenCosts(flat, 0.5, [0.3]), [8]) == [0]
    assert Goodput().pace(requests(1), [8], GivenCosts(flat, 0.5, [0.3])) == [Pace(0, UNPROFITABLE)]


def test_the_length_maximises_tokens_per_second() -> None:
    for rate in (0.3, 0.6, 0.8, 0.95):
        costs = GivenCosts(lambda rows: 1 + 0.1 * (rows - 1), 0.05, [rate])
        goodput = [sum(rate**i for i in range(k + 1)) / (1 + 0.15 * k) for k in range(9)]
        assert lengths(costs, [8]) == [max(range(9), key=goodput.__getitem__)]


def test_the_batch_shares_rows_where_they_are_worth_most() -> None:
    """Rows are free up to a knee: the request whose guesses hold gets them."""
    costs = GivenCosts(lambda rows: 1.0 if rows <= 6 else rows, 0, [0.9, 0.2])
    assert lengths(costs, [8, 8]) == [4, 0]
    assert lengths(costs, [2, 8]) == [2, 2]


def test_large_batches_do_not_draft_where_rows_cost_their_share() -> None:
    costs = GivenCosts(lambda rows: float(rows), 0, [0.9] * 16)
    assert lengths(costs, [8] * 16) == [0] * 16


def test_what_did_not_pay_is_tried_again_as_its_price_allows() -> None:
    """Tries of half a step's time, in less than a tenth of all time: one in six steps, of whom waited longest."""
    pacer, both = Goodput(tries=0.1), requests(2)
    costs = GivenCosts(lambda rows: float(rows), 0, [0.1, 0.1], trial=0.5)
    tried: list[tuple[int, int]] = []
    for step in range(1, 21):
        costs.untried += 1
        paces = pacer.pace(both, [8, 8], costs)
        for i, pace in enumerate(paces):
            assert pace.num_tokens == pace.is_try
            if pace.is_try:
                tried.append((step, i))
                costs.untried = 0
    assert tried == [(6, 0), (12, 1), (18, 0)]


def test_no_time_for_tries_is_no_try_not_even_a_first_one() -> None:
    pacer, some = Goodput(tries=0), requests(1)
    costs = GivenCosts(lambda rows: float(rows), 0, [0.1], untried=100, trial=0)
    assert [pacer.pace(some, [8], costs)[0].num_tokens for _ in range(20)] == [0] * 20


def test_tries_that_are_never_paid_back_take_no_more_than_their_share() -> None:
    costs = MeasuredCosts()
    for _ in range(100):
        costs.verified(1, 0.5)
    assert (costs.untried, costs.trial) == (50, 0)
    costs.tried(2.0)
    costs.tried(4.0)
    assert (costs.untried, costs.trial) == (0, 3)


def seconds(find: Callable[[I32], F64], number: int) -> float:
    return float(find(np.array([number], np.int32))[0])


def test_times_of_rows_that_were_not_measured() -> None:
    costs = MeasuredCosts()
    costs.verified(1, 1.0)
    assert seconds(costs.verify, 9) == 1.0  # unknown: worth a try
    costs.verified(9, 3.0)
    assert [seconds(costs.verify, rows) for rows in (1, 5, 9, 20)] == [1, 2, 3, 3]
    for _ in range(30):
        costs.verified(9, 5.0)
    assert seconds(costs.verify, 9) == pytest.approx(5, rel=0.01)
    for _ in range(2 * FORGET):
        costs.verified(1, 1.0)
    assert seconds(costs.verify, 9) == pytest.approx(1)  # long ago: worth a try again


def test_older_times_move_with_newer_ones() -> None:
    """A machine that gets slower is slower for all numbers of rows, measured or not."""
    costs = MeasuredCosts()
    for one in (1.0, 2.0):
        for _ in range(40):
            costs.verified(1, one)
        costs.verified(4, 3 * one)
        costs.verified(1, one)
        assert seconds(costs.verify, 4) / seconds(costs.verify, 1) == pytest.approx(3, rel=0.01)
    for _ in range(40):
        costs.verified(1, 1.0)
    assert seconds(costs.verify, 4) == pytest.approx(3, rel=0.01)
    costs.verified(4, 6.0)  # one that is slower by itself moves nothing that is newer than its last
    assert seconds(costs.verify, 1) == pytest.approx(1, rel=0.01)


def test_fewer_rows_than_were_ever_measured_are_worth_a_try() -> None:
    costs = MeasuredCosts()
    costs.verified(5, 4.0)
    assert seconds(costs.verify, 1) == pytest.approx(0.8)


def test_drafts_that_were_not_timed_take_their_share() -> None:
    costs = MeasuredCosts()
    assert seconds(costs.draft, 3) == 0
    costs.drafted(2, 1.0)
    assert [seconds(costs.draft, n) for n in (1, 2, 4)] == [0.5, 1, 2]
    costs.drafted(6, 1.2)  # leaves beside a chain take hardly any time
    assert seconds(costs.draft, 4) == pytest.approx(1.1)


def test_worth_follows_what_was_kept_and_forgets() -> None:
    costs, [a, b] = MeasuredCosts(), requests(2)
    assert costs.worth(a, 3) == pytest.approx([1 / 2, 1 / 4, 1 / 8])
    for _ in range(60):
        costs.accepted(a, [0, 1, 2, 3], 4)
    assert min(costs.worth(a, 4)) > 0.9
    assert min(costs.worth(b, 4)) > 0.7  # starts from what the others had
    for _ in range(60):
        costs.accepted(a, [], 4)
    assert costs.worth(a, 1)[0] < 0.15


def test_worth_is_of_places_in_the_draft() -> None:
    """Of a chain of two, the first of which is always kept and the second never, and two leaves, the first of which is
    kept every other time.
    """
    costs, [a, b] = MeasuredCosts(), requests(2)
    for i in range(100):
        costs.accepted(a, [0, 2] if i % 2 else [0], 4)
    for request in (a, b):
        first, second, leaf, other = costs.worth(request, 4)
        assert first > 0.8
        assert second == leaf == pytest.approx((0 + 0.5) / 2, abs=0.1)  # the leaf does not come without the chain
        assert other < 0.2


def test_a_request_that_fares_better_than_others_is_not_held_back_by_them() -> None:
    costs, [a, b] = MeasuredCosts(), requests(2)
    for _ in range(60):
        costs.accepted(a, [0], 1)
        costs.accepted(b, [], 4)
    for _ in range(30):
        costs.accepted(a, [0], 1)  # drafting for the other is given up
    assert costs.worth(a, 4)[1] > 0.6
    assert costs.worth(b, 4)[0] < 0.2
    assert costs.worth(b, 1000)[-1] == 0


class Clock:
    """A clock that forwards and drafters move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def speed(right: bool, row: float, guess_seconds: float, count: int = 400) -> tuple[float, float, dict[str, int]]:
    """(seconds a token, share of plain decoding's speed, reasons) of one long answer on a machine made up."""
    clock = Clock()

    class Timed(FakeModel):
        def forward(self, batch: ForwardBatch) -> ForwardOutput:
            out = super().forward(batch)
            seconds = 1 + row * (len(batch.tokens) - 1)
            clock.now += seconds
            return ForwardOutput(out.logits, out.weight_bytes, out.kv_bytes, seconds)

    def guess(tokens: Sequence[int], k: int) -> list[int]:
        clock.now += guess_seconds * k
        return [token if right else (token + 1) % 97 for token in expected(tokens, k)]

    engine = make_engine(num_pages=128, speculation=Speculation(Scripted(guess), Goodput(), clock=clock))
    engine.model.__class__ = Timed
    request = engine.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=count))
    drain(engine)
    return clock.now / count, count / clock.now, dict(request.state["metrics"].drafts.reasons)


def test_good_guesses_pay() -> None:
    _, share, _ = speed(right=True, row=0.05, guess_seconds=0.02)
    assert share > 3


def test_bad_guesses_cost_at_most_three_percent() -> None:
    _, share, reasons = speed(right=False, row=0.3, guess_seconds=0.1)
    assert share > 0.97
    assert reasons[UNPROFITABLE] > 350


class Never:
    """Notes in which steps of a speculation it was asked for how many requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.speculation = Speculation(Scripted(expected), self)

    def pace(self, requests: Sequence[Request], limits: Sequence[int], costs: Costs) -> list[Pace]:
        self.asked.append((self.speculation.num_proposed, len(requests)))
        return [Pace(0, "never")] * len(requests)


def test_while_nothing_is_drafted_the_pacer_is_asked_ever_less_often() -> None:
    never = Never()
    engine = make_engine(num_pages=128, speculation=never.speculation)
    request = engine.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=130))
    drain(engine)
    steps = [2, 2 + REST, 2 + 3 * REST, *range(2 + 3 * REST + LONG_REST, 130, LONG_REST)]
    assert never.asked == [(step, 1) for step in steps]
    assert request.state["metrics"].drafts.reasons["never"] >= 125


def test_a_request_that_begins_ends_the_rest() -> None:
    never = Never()
    engine = make_engine(num_pages=128, speculation=never.speculation)
    engine.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=60))
    while never.speculation.num_proposed < 3:
        engine.step()
    engine.add([4, 5], SamplingParams(temperature=0, max_tokens=5))
    while len(never.asked) < 2:
        engine.step()
    assert never.asked == [(2, 1), (5, 2)]
    drain(engine)


def test_good_guesses_that_cost_too_much_are_dropped() -> None:
    _, share, _ = speed(right=True, row=0.9, guess_seconds=0.5)
    assert share > 0.97

"""The continuous scheduler: limits hold, the earlier go first, and a plan never needs more pages than there are."""

from __future__ import annotations

import pytest
from fake_model import drain, make_engine

from narrows.sampling import SamplingParams
from narrows.schedulers.continuous import Continuous
from narrows.types import TARGET, ForwardBatch

LONG = SamplingParams(temperature=0, max_tokens=12)


@pytest.mark.parametrize(("budget", "max_num_seqs"), [(1, 1), (6, 3), (50, 2), (512, 64)])
def test_limits_hold_in_every_step(budget: int, max_num_seqs: int) -> None:
    engine = make_engine(scheduler=Continuous(budget, max_num_seqs))
    sizes: list[tuple[int, int]] = []

    def note(batch: ForwardBatch) -> None:
        sizes.append((len(batch.tokens), len(batch.context_lens)))

    engine.model.before = note  # type: ignore[attr-defined]
    for i in range(8):
        engine.add([i] * (3 * i + 1), LONG)
    drain(engine)
    assert max(tokens for tokens, _ in sizes) <= budget
    assert max(requests for _, requests in sizes) <= max_num_seqs


def test_first_come_first_served() -> None:
    engine = make_engine(scheduler=Continuous(budget=16, max_num_seqs=2))
    requests = [engine.add([i] * 20, LONG) for i in range(5)]
    order: list[str] = []
    while engine.requests:
        order += [r.request.id for r in engine.step() if r.finish_reason]
        started = [r.cursors[TARGET].num_read > 0 or r.finish_reason is not None for r in requests]
        assert started == sorted(started, reverse=True)
    assert order == [r.id for r in requests]


def test_the_latest_is_preempted_and_the_earliest_never() -> None:
    engine = make_engine(num_pages=10, page_size=4, max_model_len=40)
    requests = [engine.add([i] * 6, SamplingParams(temperature=0, max_tokens=30)) for i in range(4)]
    drain(engine)
    preemptions = [r.num_preemptions for r in requests]
    assert preemptions[0] == 0
    assert preemptions[-1] > 0


def test_what_has_nothing_to_read_stops_the_engine_loudly() -> None:
    class Idle:
        def plan(self, waiting: object, running: object, pages: object) -> object:
            from narrows.types import StepPlan

            return StepPlan([])

    engine = make_engine(scheduler=Idle())  # type: ignore[arg-type]
    assert engine.step() == []
    engine.add([1], LONG)
    with pytest.raises(RuntimeError, match="left every request where it is"):
        engine.step()

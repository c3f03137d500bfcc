"""The process of one model, without its process: commands in, reports out."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from narrows import LLM, SamplingParams
from narrows.engine import Engine
from narrows.loader import Loaded
from narrows.serve import wire
from narrows.serve.subserver import Subserver
from narrows.types import ForwardBatch, ForwardOutput

LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


@dataclass
class Model:
    """The real one, with a count of its forwards and failures on demand."""

    model: Any
    num_forwards: int = 0
    fails: bool = False

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        self.num_forwards += 1
        if self.fails:
            self.fails = False
            raise RuntimeError("out of order")
        return self.model.forward(batch)


@pytest.fixture(scope="module")
def loaded(tiny_path: Path) -> Loaded:
    return LLM(tiny_path, stack="scheduler=continuous:max_num_seqs=2", num_threads=1, cache=False).loaded


@pytest.fixture
def model(loaded: Loaded) -> Model:
    return Model(loaded.model)


@pytest.fixture
def reports() -> list[wire.Report]:
    return []


@pytest.fixture
def subserver(loaded: Loaded, model: Model, reports: list[wire.Report]) -> Subserver:
    old = loaded.engine
    limits = {"vocab_size": old.vocab_size, "max_model_len": old.max_model_len, "eos_ids": old.eos_ids}
    engine = Engine(model, old.pool, old.scheduler, old.verifier, **limits)
    return Subserver(replace(loaded, engine=engine), reports.append)


def submit(id: str, params: SamplingParams = LONG, num_prompt: int = 20, **more: Any) -> wire.Submit:
    return wire.Submit(id, [5 + i % 200 for i in range(num_prompt)], params, seed=1, **more)


def test_a_cancelled_request_is_gone_before_the_next_step(subserver: Subserver, model: Model) -> None:
    """While it decodes, while it reads its prompt, and while it waits."""
    pool = subserver.engine.pool
    for id, num_prompt in (("decoding", 20), ("reading", 500), ("waiting", 20)):
        subserver.handle(submit(id, num_prompt=num_prompt))
    subserver.step()  # reads 492 of the 500
    assert [r.id for r in subserver.engine.waiting] == ["waiting/0"]
    num_forwards = model.num_forwards
    for id in ("waiting", "decoding", "reading"):
        subserver.handle(wire.Cancel(id))
    assert subserver.idle and not subserver.engine.requests
    assert pool.num_free == pool.num_pages
    subserver.step()
    assert model.num_forwards == num_forwards
    subserver.handle(wire.Cancel("never was"))


def test_a_request_past_its_deadline_costs_no_forward(
    subserver: Subserver, model: Model, reports: list[wire.Report]
) -> None:
    subserver.handle(submit("late", deadline=time.monotonic() - 1))
    subserver.step()
    assert model.num_forwards == 0 and subserver.idle
    [ended] = reports[-1].ended
    assert (ended.id, ended.code) == ("late", "deadline")


def test_a_request_that_expires_in_the_queue_is_never_read(
    subserver: Subserver, reports: list[wire.Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    for id in ("one", "two"):
        subserver.handle(submit(id))
    subserver.handle(submit("queued", deadline=now + 1000))
    subserver.step()
    assert [request.id for request in subserver.engine.waiting] == ["queued/0"]
    num_read = subserver.engine.ledger.num_read
    monkeypatch.setattr(time, "monotonic", lambda: now + 1001)
    subserver.handle(wire.Cancel("one"))  # its place is free, but the time is over
    subserver.step()
    assert [(ended.id, ended.code) for ended in reports[-1].ended] == [("queued", "deadline")]
    assert subserver.engine.ledger.num_read == num_read + 1  # a token of the other


def test_keys_and_priorities_reach_the_scheduler(subserver: Subserver) -> None:
    subserver.handle(submit("x", replace(LONG, n=2), owner="key", priority=-5))
    assert {(r.owner, r.priority) for r in subserver.engine.waiting} == {("key", -5)}


def test_a_step_that_fails_ends_its_requests_and_no_others(
    subserver: Subserver, model: Model, reports: list[wire.Report]
) -> None:
    for id in ("one", "two", "waiting"):
        subserver.handle(submit(id, replace(LONG, max_tokens=3)))
    model.fails = True
    subserver.step()
    assert {ended.id for ended in reports[-1].ended} == {"one", "two"}
    assert all(ended.code == "error" and "out of order" not in ended.message for ended in reports[-1].ended)
    while not subserver.idle:
        subserver.step()
    assert reports[-1].deltas[-1].id == "waiting" and reports[-1].deltas[-1].finish_reason == "length"


def test_what_the_engine_refuses_is_reported(subserver: Subserver, reports: list[wire.Report]) -> None:
    """Should the gateway ever let something through."""
    subserver.handle(submit("long", num_prompt=10_000))
    subserver.handle(submit("good", replace(LONG, max_tokens=1)))
    subserver.step()
    assert [(ended.id, ended.code) for ended in reports[-1].ended] == [("long", "refused")]
    assert [delta.id for delta in reports[-1].deltas] == ["good"]
    assert subserver.idle


def test_deltas_join_to_what_the_model_says_offline(
    subserver: Subserver, reports: list[wire.Report], tiny_path: Path
) -> None:
    params = SamplingParams(temperature=1.5, n=2, max_tokens=30, stop=["e"], logprobs=1)
    subserver.handle(submit("x", params))
    while not subserver.idle:
        subserver.step()
    [want] = LLM(tiny_path, num_threads=1, cache=False).generate([list(range(5, 25))], replace(params, seed=1))
    for output in want.outputs:
        deltas = [d for report in reports for d in report.deltas if d.index == output.index]
        assert "".join(d.text for d in deltas) == output.text
        assert [t for d in deltas for t in d.token_ids] == output.token_ids
        assert [t for d in deltas for t in d.logprobs or []] == output.logprobs
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (output.finish_reason, output.stop_reason)
    assert [id for report in reports for id in report.started] == ["x"]


def test_a_ping_is_answered_without_a_step(subserver: Subserver, model: Model, reports: list[wire.Report]) -> None:
    subserver.handle(wire.Ping())
    assert len(reports) == 1 and subserver.idle and model.num_forwards == 0


def test_records_survive_the_wire(subserver: Subserver, reports: list[wire.Report]) -> None:
    params = SamplingParams(stop=["x"], logit_bias={3: 2.5}, seed=(1 << 64) - 1, top_k=-1, logprobs=2)
    command = submit("x", params, salt="s", deadline=1.5)
    assert wire.decode_command(wire.encode(command)) == command
    subserver.handle(submit("y", SamplingParams(logprobs=2, prompt_logprobs=1, max_tokens=1)))
    subserver.step()
    assert wire.decode_message(wire.encode(reports[-1])) == reports[-1]


def test_answers_of_a_prompt_may_end_in_the_same_step(subserver: Subserver, reports: list[wire.Report]) -> None:
    subserver.handle(submit("a", replace(LONG, n=2, max_tokens=3)))
    while not subserver.idle:
        subserver.step()
    ends = [delta.index for report in reports for delta in report.deltas if delta.finish_reason]
    assert sorted(ends) == [0, 1]
    assert not subserver.engine.requests

"""Speculation in the engine: the same tokens whatever is guessed, in fewer steps when guesses are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_model import VOCAB, FakeModel, drain, expected, generate, make_engine, random_prompt
from scripted import Bushy, Scripted

from narrows.drafters.base import Source
from narrows.drafters.first import First
from narrows.drafters.looped import Looped
from narrows.drafters.model import DraftModel
from narrows.drafters.ngram import NGram
from narrows.engine import Engine
from narrows.kv.pool import KvPool
from narrows.pacers.fixed import Fixed
from narrows.reader import DraftReader
from narrows.sampling import SamplingParams
from narrows.schedulers.continuous import Continuous
from narrows.speculation import Speculation
from narrows.types import TARGET

RNG = np.random.default_rng(11)
PROMPTS = [random_prompt(RNG) for _ in range(8)]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
SAMPLED = SamplingParams(temperature=0.9, seed=5, max_tokens=24, top_p=0.95, frequency_penalty=0.4)


def right(tokens: Sequence[int], k: int) -> list[int]:
    return expected(tokens, k)


def half_right(tokens: Sequence[int], k: int) -> list[int]:
    """Right up to a place that depends on the text, wrong there."""
    guess = expected(tokens, k)
    if sum(tokens) % 3:
        guess[sum(tokens) % k] += 1
    return [token % VOCAB for token in guess]


def wrong(tokens: Sequence[int], k: int) -> list[int]:
    return [(token + 1) % VOCAB for token in expected(tokens, k)]


def own_model(**options: Any) -> dict[Source, DraftReader]:
    model = FakeModel(64, 8, **options)
    return {Source("model", "twin"): DraftReader("twin", model, KvPool(64, 8, identity="twin", codec="bf16"))}


DRAFTERS: dict[str, Any] = {
    "right": Scripted(right),
    "half right": Scripted(half_right),
    "wrong": Scripted(wrong),
    "nothing": Scripted(lambda tokens, k: []),
    "ngram": NGram(min_n=1),
    "model": DraftModel("twin"),
    "model with leaves": DraftModel("twin", k=3, leaves=4),
    "looped model with leaves": Looped(DraftModel("twin", k=2, leaves=2), gate=float("-inf")),
    "looped tree": Looped(NGram(k=2, min_n=1, branches=2), gate=float("-inf")),
    "looped ngram": Looped(NGram(k=2, min_n=1), gate=-2),
    "looped model": Looped(DraftModel("twin", k=2), gate=float("-inf")),
    "looped half right": Looped(Scripted(half_right)),
    "looped by token": Looped(Scripted(half_right), rule="token"),
    "tree": Bushy(right),
    "half right tree": Bushy(half_right),
    "ngram tree": NGram(k=3, min_n=1, branches=3),
    "tree|model": First((Scripted(lambda tokens, k: []), NGram(k=2, branches=2), DraftModel("twin"))),
    "ngram|model": First((NGram(min_n=1), DraftModel("twin", chunk=16))),
    "looped ngram|model": Looped(First((NGram(k=3), DraftModel("twin", k=3)))),
}


def speculating(drafter: Any, **options: Any) -> Engine:
    return make_engine(speculation=Speculation(drafter, Fixed(), own_model()), **options)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "options",
    [{}, {"page_size": 4}, {"scheduler": Continuous(budget=5)}, {"num_pages": 9, "max_model_len": 70}],
    ids=["roomy", "small pages", "small budget", "preempted"],
)
def test_same_tokens_as_without(name: str, params: SamplingParams, options: dict[str, Any]) -> None:
    plain = generate(make_engine(**options), PROMPTS, params)
    engine = speculating(DRAFTERS[name], **options)
    assert generate(engine, PROMPTS, params) == plain
    if "num_pages" in options:
        assert engine.ledger.num_preemptions > 0


def test_right_guesses_save_forwards_and_wrong_ones_cost_none() -> None:
    params = SamplingParams(temperature=0, max_tokens=26)  # the first by the prompt's forward, then five at a time
    steps = {}
    for name in ("right", "half right", "wrong", "model"):
        engine = speculating(DRAFTERS[name])
        generate(engine, PROMPTS[:1], params)
        steps[name] = engine.ledger.num_steps
    assert steps == {"right": 6, "model": 6, "wrong": 26, "half right": steps["half right"]}
    assert 6 < steps["half right"] < 26


def test_branches_of_a_tree_are_accepted_and_read_again_in_place() -> None:
    engine = speculating(Bushy(right))
    sizes: list[int] = []
    engine.model.before = lambda batch: sizes.append(len(batch.tokens))  # type: ignore[attr-defined]
    params = SamplingParams(temperature=0, max_tokens=25, logprobs=1)
    request = engine.add(PROMPTS[0], params)
    results = drain(engine)
    assert request.output == expected(PROMPTS[0], 25)
    assert [len(result.tokens) for result in results[:5]] == [1, 4, 4, 4, 4]
    assert sizes[1:5] == [1 + 9, *[1 + 3 + 9] * 3]  # the last token, three off the first branch, the tree
    alone = make_engine()
    alone.add(PROMPTS[0], params)
    assert [r for one in results for r in one.logprobs or ()] == [r for one in drain(alone) for r in one.logprobs or ()]


def test_nothing_is_drafted_beyond_the_end() -> None:
    """Of max_tokens and of the context: the longest useful draft leaves room for the target's own token."""
    seen: list[tuple[int, int]] = []

    def note(tokens: Sequence[int], k: int) -> list[int]:
        seen.append((len(tokens), k))
        return right(tokens, k)

    engine = speculating(Scripted(note), max_model_len=16)
    request = engine.add([1] * 10, SamplingParams(temperature=0, max_tokens=None))
    drain(engine)
    assert len(request.tokens) == 16
    assert all(length + k < 16 for length, k in seen)


def test_a_stop_inside_a_draft_ends_the_answer_there() -> None:
    plain = expected([1, 2, 3], 20)
    end = plain[6]
    for name in ("right", "model", "looped model"):
        engine = speculating(DRAFTERS[name], eos_ids=frozenset({end}))
        request = engine.add([1, 2, 3], GREEDY)
        drain(engine)
        assert (request.output, request.finish_reason) == (plain[: plain.index(end) + 1], "stop")


def test_logprobs_are_those_of_plain_decoding() -> None:
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=2, prompt_logprobs=1)

    def everything(engine: Engine) -> list[Any]:
        engine.add(PROMPTS[0], params)
        results = drain(engine)
        tokens = [entry for result in results for entry in result.logprobs or ()]
        return [tokens, [entry for result in results for entry in result.prompt_logprobs or ()]]

    assert everything(speculating(DRAFTERS["half right"])) == everything(make_engine())


def test_drafts_take_no_ones_turn() -> None:
    """With a budget of one token a request, everybody advances in every step and nobody drafts."""
    engine = speculating(Scripted(right), scheduler=Continuous(budget=8))
    requests = [engine.add([i], GREEDY) for i in range(8)]
    while engine.requests:
        engine.step()
        assert len({len(r.output) for r in requests}) == 1


def test_drafts_give_way_when_pages_are_short() -> None:
    """A draft never makes anybody wait or be preempted: pages are those of plain decoding while others need them."""
    plain, engine = (
        make_engine(num_pages=9, max_model_len=70),
        speculating(Scripted(right), num_pages=9, max_model_len=70),
    )
    for one in (plain, engine):
        generate(one, PROMPTS, GREEDY)
    assert engine.ledger.num_preemptions <= plain.ledger.num_preemptions


def test_pages_of_draft_models_come_back_and_prefixes_are_shared() -> None:
    engine = speculating(DraftModel("twin"))
    [reader] = engine.readers[1:]
    sizes: list[int] = []
    reader.model.before = lambda batch: sizes.append(len(batch.tokens))  # type: ignore[attr-defined]
    prompt = list(range(50))
    generate(engine, [prompt], GREEDY)
    assert reader.pool.num_free == reader.pool.num_pages
    assert max(sizes) >= 50
    sizes.clear()
    generate(engine, [prompt], GREEDY)
    assert max(sizes) < 16  # all but the last page of the prompt was remembered


def test_a_draft_model_reads_long_prompts_in_chunks() -> None:
    engine = speculating(DraftModel("twin", chunk=16))
    [reader] = engine.readers[1:]
    sizes: list[int] = []
    reader.model.before = lambda batch: sizes.append(len(batch.tokens))  # type: ignore[attr-defined]
    [output] = generate(engine, [list(range(60))], GREEDY)
    assert output == expected(list(range(60)), 24)
    assert max(sizes) <= 16
    assert engine.ledger.drafts.accepted[0] > 0


def test_aborted_requests_give_back_the_pages_of_every_model() -> None:
    engine = speculating(DraftModel("twin"))
    requests = [engine.add(prompt, GREEDY) for prompt in PROMPTS]
    for _ in range(3):
        engine.step()
    for request in requests:
        engine.abort(request.id)
    engine.check()
    assert all(reader.pool.num_free == reader.pool.num_pages for reader in engine.readers)


def test_a_drafter_that_fails_aborts_its_requests_and_no_others() -> None:
    def fail(tokens: Sequence[int], k: int) -> list[int]:
        raise ZeroDivisionError

    engine = speculating(Scripted(fail))
    failing = engine.add([1, 2], GREEDY)
    engine.step()
    waiting = engine.add([3], GREEDY)
    with pytest.raises(ZeroDivisionError):
        engine.step()
    assert failing.finish_reason == "abort"
    assert not failing.cursors[TARGET].pages
    assert waiting.id in engine.requests
    engine.check()


def test_figures_of_a_request() -> None:
    engine = speculating(Scripted(half_right))
    request = engine.add(PROMPTS[2], GREEDY)
    drain(engine)
    drafts = request.state["metrics"].drafts
    assert drafts.num_tokens == 24
    assert drafts.num_steps == engine.ledger.num_steps
    assert drafts.acceptance_length == pytest.approx(24 / engine.ledger.num_steps)
    assert sum(drafts.accepted) == 24 - drafts.num_steps
    assert drafts.accepted == sorted(drafts.accepted, reverse=True)
    figures = request.state["metrics"].json()["speculation"]
    assert figures["target_forwards_per_token"] == pytest.approx(engine.ledger.num_steps / 24)
    assert all(0 <= rate <= 1 for rate in figures["acceptance_by_position"])


@pytest.mark.parametrize("seed", range(8))
def test_fuzz_add_abort_step(seed: int) -> None:
    """Any drafter on any pages: every answer is that of plain decoding, and no page of any model is lost."""
    rng = np.random.default_rng(seed)
    engine = speculating(
        list(DRAFTERS.values())[int(rng.integers(len(DRAFTERS)))],
        num_pages=int(rng.integers(12, 30)),
        page_size=4,
        max_model_len=48,
        scheduler=Continuous(budget=int(rng.choice([1, 5, 16, 128])), max_num_seqs=int(rng.integers(1, 9))),
    )
    stems = [random_prompt(rng, 8, 20) for _ in range(3)]
    added = []
    for _ in range(200):
        action = rng.random()
        if action < 0.25 and len(engine.requests) < 16:
            stem = stems[rng.integers(3)]
            prompt = stem[: int(rng.integers(1, len(stem) + 1))] + random_prompt(rng, 1, 8)
            added.append(engine.add(prompt, SamplingParams(temperature=0, max_tokens=int(rng.integers(1, 24)))))
        elif action < 0.3 and engine.requests:
            engine.abort(str(rng.choice(list(engine.requests))))
        else:
            engine.step()
        engine.check()
    drain(engine)
    assert all(reader.pool.num_free == reader.pool.num_pages for reader in engine.readers)
    for request in added:
        assert request.output == expected(request.tokens[: request.num_prompt], len(request.output))
        if request.finish_reason != "abort":
            assert len(request.output) == min(request.params.max_tokens, 48 - request.num_prompt)

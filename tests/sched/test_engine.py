"""The engine on a model that notices every wrong page: same tokens whatever the schedule, and no page lost."""

from __future__ import annotations

import numpy as np
import pytest
from fake_model import VOCAB, drain, expected, generate, logits_after, make_engine, outputs, random_prompt

from narrows.engine import ContextLengthError, RequestError
from narrows.sampling import ParamError, SamplingParams
from narrows.schedulers.continuous import Continuous
from narrows.types import TARGET, Draft, Status

RNG = np.random.default_rng(7)
PROMPTS = [random_prompt(RNG) for _ in range(12)]
GREEDY = SamplingParams(temperature=0, max_tokens=20)


@pytest.mark.parametrize("budget", [1, 7, 64, 512])
def test_same_tokens_whatever_the_budget(budget: int) -> None:
    engine = make_engine(scheduler=Continuous(budget=budget))
    assert generate(engine, PROMPTS, GREEDY) == [expected(p, 20) for p in PROMPTS]


def test_same_tokens_when_preempted() -> None:
    engine = make_engine(num_pages=9, max_model_len=70)
    assert generate(engine, PROMPTS, GREEDY) == [expected(p, 20) for p in PROMPTS]
    assert engine.ledger.num_preemptions > 0


def test_prefix_is_shared_and_changes_nothing() -> None:
    engine = make_engine()
    shared = PROMPTS[0][:4] * 8  # 32 tokens: 4 pages of 8
    prompts = [shared, [*shared, 1], [*shared, 1, 2, 3], shared[:31], [*shared[:8], 5]]
    for prompt in prompts:
        request = engine.add(prompt, GREEDY)
        drain(engine)
        assert request.output == expected(prompt, 20)
        first = prompt is shared
        assert request.num_cached == (0 if first else (len(prompt) - 1) // 8 * 8)
    again = engine.add(shared, GREEDY)
    drain(engine)
    assert again.num_cached == 24  # not the page with the last token: its logits are wanted
    assert again.output == expected(shared, 20)


def test_salt_keeps_caches_apart() -> None:
    engine = make_engine()
    prompt = list(range(40))
    for salt, cached in (("a", 0), ("b", 0), ("a", 32), ("", 0)):
        request = engine.add(prompt, GREEDY, salt=salt)
        drain(engine)
        assert request.num_cached == cached


def test_a_prompt_may_be_read_whole() -> None:
    engine = make_engine()
    whole = SamplingParams(temperature=0, max_tokens=20, skip_reading_prefix_cache=True)
    for params, cached in ((whole, 0), (whole, 0), (GREEDY, 32)):
        request = engine.add(list(range(40)), params)
        drain(engine)
        assert request.num_cached == cached
        assert request.output == expected(list(range(40)), 20)


def test_markers_never_cross() -> None:
    """16 requests that differ in one early token, together and one by one."""
    prompts = [[7] * 8 + [marker] + [9] * 30 for marker in range(16)]
    together = generate(make_engine(num_pages=40), prompts, GREEDY)
    engine = make_engine(num_pages=40)
    alone = [generate(engine, [p], GREEDY)[0] for p in prompts]
    assert together == alone == [expected(p, 20) for p in prompts]


def test_abort_frees_pages_at_once() -> None:
    engine = make_engine()
    keep, drop, waiting = engine.add(PROMPTS[0], GREEDY), engine.add(PROMPTS[1], GREEDY), None
    engine.step()
    waiting = engine.add(PROMPTS[2], GREEDY)
    held = engine.pool.num_pages - engine.pool.num_free
    assert engine.abort(drop.id) and engine.abort(waiting.id)
    engine.check()
    assert engine.pool.num_pages - engine.pool.num_free < held
    assert not engine.abort(drop.id)
    assert (drop.status, drop.finish_reason) == (Status.FINISHED, "abort")
    drain(engine)
    assert keep.output == expected(PROMPTS[0], 20)


@pytest.mark.parametrize("seed", range(6))
def test_fuzz_add_abort_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    engine = make_engine(
        num_pages=int(rng.integers(12, 30)),
        page_size=4,
        max_model_len=48,
        scheduler=Continuous(budget=int(rng.choice([1, 5, 16, 128])), max_num_seqs=int(rng.integers(1, 9))),
    )
    stems = [random_prompt(rng, 8, 20) for _ in range(3)]
    added, aborted = [], set()
    for _ in range(300):
        action = rng.random()
        if action < 0.25 and len(engine.requests) < 20:
            stem = stems[rng.integers(3)]
            prompt = stem[: int(rng.integers(1, len(stem) + 1))] + random_prompt(rng, 1, 8)
            added.append(engine.add(prompt, SamplingParams(temperature=0, max_tokens=int(rng.integers(1, 24)))))
        elif action < 0.3 and engine.requests:
            victim = str(rng.choice(list(engine.requests)))
            aborted.add(victim)
            engine.abort(victim)
        else:
            engine.step()
        engine.check()
    drain(engine)
    assert engine.pool.num_free == engine.pool.num_pages
    for request in added:
        assert request.output == expected(request.tokens[: request.num_prompt], len(request.output))
        if request.id not in aborted:
            limit = min(request.params.max_tokens, 48 - request.num_prompt)
            assert (len(request.output), request.finish_reason) == (limit, "length")


@pytest.mark.parametrize("budget", [3, 64])
def test_drafts_change_nothing_but_the_number_of_steps(budget: int) -> None:
    """Half-right drafts: accepted tokens, truncated tails, also across page borders and with sampling."""
    rng = np.random.default_rng(1)
    for params in (GREEDY, SamplingParams(temperature=1, seed=3, max_tokens=20, frequency_penalty=0.5)):
        prompt = list(range(12))
        plain = generate(make_engine(), [prompt], params)[0]
        engine = make_engine(page_size=4, scheduler=Continuous(budget=budget))
        request = engine.add(prompt, params)
        steps = 0
        while engine.requests:
            engine.step()
            engine.check()
            steps += 1
            done = len(request.output)
            if request.status is Status.RUNNING and done and engine.requests:
                guess = plain[done : done + int(rng.integers(0, 5))]
                if len(guess) > 1 and rng.random() < 0.5:
                    guess[-1] = (guess[-1] + 1) % VOCAB
                request.draft = Draft(np.array(guess, np.int32)) if guess else None
        assert request.output == plain
        assert sum(engine.ledger.drafts.accepted) > 0
        if budget == 64:
            assert steps < 20


def test_step_results_carry_every_token_once() -> None:
    engine = make_engine(num_pages=9, max_model_len=70)
    requests = [engine.add(p, GREEDY) for p in PROMPTS]
    found = outputs(drain(engine))
    assert found == {r.id: r.output for r in requests}


def test_end_tokens_and_min_tokens() -> None:
    plain = expected([1, 2, 3], 20)
    end = plain[4]
    first = plain.index(end)

    def output(**options: object) -> tuple[list[int], str | None]:
        engine = make_engine(eos_ids=frozenset({end}))
        request = engine.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=20, **options))  # type: ignore[arg-type]
        drain(engine)
        return request.output, request.finish_reason

    assert output() == (plain[: first + 1], "stop")
    assert output(ignore_eos=True) == (plain, "length")
    tokens, _ = output(min_tokens=10)
    assert len(tokens) >= 10 and end not in tokens[:10]
    stop = plain[2]
    assert output(stop_token_ids=[stop]) == (plain[: plain.index(stop) + 1], "stop")


def test_context_is_a_limit_that_is_named() -> None:
    engine = make_engine(max_model_len=32)
    with pytest.raises(ContextLengthError, match=r"has 160 tokens; the context is 32") as error:
        engine.add([1] * 160, GREEDY)
    assert (error.value.num_tokens, error.value.limit) == (160, 32)
    with pytest.raises(ContextLengthError):
        engine.add([1] * 32, GREEDY)
    request = engine.add([1] * 30, SamplingParams(temperature=0, max_tokens=None))
    drain(engine)
    assert (len(request.output), request.finish_reason) == (2, "length")


def test_bad_requests_are_refused_and_the_next_is_served() -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match=r"empty.*no token that begins"):
        engine.add([], GREEDY)
    with pytest.raises(RequestError, match=f"token {VOCAB}, but the vocabulary ends at {VOCAB - 1}"):
        engine.add([1, VOCAB], GREEDY)
    for prompt in ("text", [1.5], [None], [[1]]):
        with pytest.raises(RequestError, match="must be a sequence of token ids"):
            engine.add(prompt, GREEDY)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="token -1"):
        engine.add([-1], GREEDY)
    with pytest.raises(ParamError, match="logit_bias holds token 191222"):
        engine.add([1], SamplingParams(logit_bias={191222: -100}))
    engine.add([1], GREEDY, id="mine")
    with pytest.raises(RequestError, match="already a request 'mine'"):
        engine.add([2], GREEDY, id="mine")
    drain(engine)
    assert generate(engine, [[1, 2]], GREEDY) == [expected([1, 2], 20)]


def test_empty_prompt_begins_a_text() -> None:
    engine = make_engine(bos_id=5)
    assert generate(engine, [[]], GREEDY) == [expected([5], 20)]


def test_failed_forward_frees_everything_and_the_engine_goes_on() -> None:
    engine = make_engine()
    failed = [engine.add(p, GREEDY) for p in PROMPTS[:3]]
    engine.step()

    def fail(batch: object) -> None:
        raise MemoryError("no room")

    engine.model.before = fail  # type: ignore[attr-defined]
    with pytest.raises(MemoryError, match="no room"):
        engine.step()
    engine.check()
    assert engine.pool.num_free == engine.pool.num_pages
    assert all(r.finish_reason == "abort" for r in failed)
    engine.model.before = None  # type: ignore[attr-defined]
    assert generate(engine, PROMPTS[:3], GREEDY) == [expected(p, 20) for p in PROMPTS[:3]]


def test_seeded_sampling_is_the_same_in_any_batch() -> None:
    params = SamplingParams(temperature=1, top_p=0.9, seed=11, max_tokens=15)
    alone = generate(make_engine(), [PROMPTS[0]], params)[0]
    crowd = make_engine(num_pages=10, max_model_len=70, scheduler=Continuous(budget=7))
    others = [crowd.add(p, SamplingParams(max_tokens=15, seed=i)) for i, p in enumerate(PROMPTS[1:6])]
    request = crowd.add(PROMPTS[0], params)
    drain(crowd)
    assert request.output == alone
    assert all(len(r.output) == 15 for r in others)
    assert alone != generate(make_engine(), [PROMPTS[0]], SamplingParams(temperature=1, seed=12, max_tokens=15))[0]


@pytest.mark.parametrize(("budget", "pages"), [(5, 64), (512, 64), (5, 7)])
def test_logprobs_are_those_of_the_raw_logits(budget: int, pages: int) -> None:
    engine = make_engine(num_pages=pages, max_model_len=48, scheduler=Continuous(budget=budget))
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=2, frequency_penalty=1)
    prompts = PROMPTS[:3]
    for _ in range(2):  # the second time everything could come from the prefix cache
        requests = [engine.add(p, params) for p in prompts]
        results = drain(engine)
        for request in requests:
            mine = [r for r in results if r.request is request]
            prompt = [p for r in mine for p in r.prompt_logprobs or ()]
            output = [p for r in mine for p in r.logprobs or ()]
            assert [p.token for p in prompt] == request.tokens[1 : request.num_prompt]
            assert [p.token for p in output] == request.output
            for i, found in enumerate(prompt + output, start=1):
                logits = logits_after(np.array(request.tokens[:i])).astype(np.float64)
                logprobs = logits - np.log(np.exp(logits).sum())
                order = np.argsort(-logprobs, kind="stable")
                assert found.logprob == pytest.approx(logprobs[found.token], abs=1e-5)
                assert found.rank == list(order).index(found.token) + 1
                assert [t for t, _ in found.top] == order[: len(found.top)].tolist()
                assert len(found.top) == (2 if i < request.num_prompt else 3)


def test_short_requests_do_not_starve_a_long_one() -> None:
    engine = make_engine(num_pages=12, page_size=4, max_model_len=40)
    for _ in range(3):
        engine.add([1, 2, 3], GREEDY)
    engine.step()
    long = engine.add(list(range(30)), SamplingParams(temperature=0, max_tokens=5))
    for i in range(200):
        if long.status is Status.FINISHED:
            break
        engine.add([i % VOCAB], SamplingParams(temperature=0, max_tokens=3))
        engine.step()
        engine.check()
    assert long.output == expected(list(range(30)), 5)


def test_ledger_counts_what_was_read() -> None:
    engine = make_engine()
    request = engine.add(list(range(10)), GREEDY)
    drain(engine)
    ledger, metrics = engine.ledger, request.state["metrics"]
    assert (ledger.num_steps, ledger.num_read, ledger.num_output) == (20, 29, 20)
    assert ledger.weight_bytes == 20_000
    assert metrics.weight_bytes_per_token == 1000
    assert metrics.kv_bytes_per_token == sum(range(11, 30)) / 19
    assert metrics.ttft > 0 and metrics.num_output == 20
    assert not request.cursors[TARGET].pages

"""Real models: the ids of plain decoding, whatever drafts, alone and in a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_heads import write_tiny_head

from narrows import LLM, SamplingParams
from narrows.methods import StackError
from narrows.native import PAGE_SIZE, NativeModel
from narrows.types import ForwardBatch

TOPICS = ["bread", "prime numbers", "old maps", "winter", "glass", "bees", "a lost key", "tides"]
OPENINGS = [
    "Write about {}.",
    "The history of {} begins",
    "List facts about {}, then repeat them.",
    "def {}(x):\n   ",
]
PROMPTS = [
    "Repeat after me, five times: the quick brown fox jumps over the lazy dog.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Write about rivers.",
    "Translate into French: the sea is blue, the sea is deep, the sea is wide.",
    "Q: What is seven times eight?\nA:",
    "List the months of the year, then list them again.",
    "Once, in a town known for its clocks, there lived",
    "Summarise: the cat sat on the mat. The cat sat on the mat again. The dog sat on the cat.",
]
DRAFTS = {
    "ngram": "ngram:min_n=1,k=4",
    "ngram tree": "ngram:min_n=1,k=3,branches=3",
    "ngram corpus": "ngram:min_n=1,k=4,corpus=4096",
    "model": "model:model={path},k=3",
    "self": "self:skip=12-15,k=2",
    "ngram|model": "ngram:min_n=3|model:model={path},k=3",
    "looped ngram": "looped:base=(ngram:k=4)",
    "looped model": "looped:base=(model:model={path},k=2),gate=-2",
    "looped by token": "looped:base=(model:model={path},k=3),rule=token",
}
MANY = PROMPTS + [opening.format(topic) for topic in TOPICS for opening in OPENINGS]
Ids = list[list[int]]


def load(path: Path, draft: str | None, pace: str = "fixed", context: int = 512) -> LLM:
    stack = "" if draft is None else f"draft={draft.format(path=path)} pace={pace}"
    return LLM(path, stack, num_threads=2, max_model_len=context, progress=False)


def ids(llm: LLM, prompts: list[str], params: SamplingParams, batch: int) -> Ids:
    groups = (prompts[i : i + batch] for i in range(0, len(prompts), batch))
    return [out.outputs[0].token_ids for group in groups for out in llm.generate(group, params)]


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


@pytest.fixture(scope="module")
def plain(smollm2_path: Path) -> Ids:
    return ids(load(smollm2_path, None), PROMPTS[:3], greedy(24), 3)


@pytest.mark.parametrize("name", DRAFTS)
def test_the_ids_of_plain_decoding(name: str, smollm2_path: Path, plain: Ids) -> None:
    llm = load(smollm2_path, DRAFTS[name])
    assert ids(llm, PROMPTS[:1], greedy(24), 1) == plain[:1]
    assert ids(llm, PROMPTS[:3], greedy(24), 3) == plain
    assert sum(llm.ledger.drafts.accepted) > 0


def test_sampled_ids_of_plain_decoding(smollm2_path: Path) -> None:
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=24, repetition_penalty=1.1)
    plain = ids(load(smollm2_path, None), PROMPTS[:3], params, 3)
    assert ids(load(smollm2_path, DRAFTS["ngram|model"]), PROMPTS[:3], params, 3) == plain


def test_a_stop_string_within_an_accepted_draft_ends_the_count(tiny_path: Path) -> None:
    llm = LLM(tiny_path, f"draft=model:model={tiny_path},k=8 pace=fixed", num_threads=1, cache=False)
    whole = llm.generate([1, 2, 3], greedy(24))[0].outputs[0]
    stop = llm.tokenizer.decode(whole.token_ids[11:13])
    ended = llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, stop=(stop,)))[
        0
    ].outputs[0]
    assert ended.finish_reason == "stop" and len(ended.token_ids) < 24
    assert ended.metrics.num_output == len(ended.token_ids)


@pytest.mark.parametrize("temperature", [0, 0.9])
@pytest.mark.parametrize("verify", ["greedy", "rejection"])
def test_a_model_that_drafts_for_itself_is_always_right(tiny_path: Path, verify: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=33, ignore_eos=True)
    llm = LLM(tiny_path, f"draft=model:model={tiny_path},k=3 pace=fixed verify={verify}", num_threads=1, cache=False)
    [answer] = llm.generate("the cat", params)
    drafts = answer.metrics.drafts
    assert drafts is not None
    assert drafts.accepted == drafts.drafted
    assert drafts.num_steps == 9  # one for the prompt, then four tokens each


def test_the_pacer_changes_no_ids(tiny_path: Path, tiny_gguf: Callable[..., Path]) -> None:
    other = tiny_gguf(layers=1, seed=5)
    prompts = ["the cat", "a", "in the"]
    plain = ids(LLM(tiny_path, num_threads=1, cache=False), prompts, greedy(60), 3)
    for draft in (f"model:model={other}", f"looped:base=(ngram:min_n=1|model:model={other})"):
        llm = LLM(tiny_path, f"draft={draft}", num_threads=1, cache=False)
        assert ids(llm, prompts, greedy(60), 3) == plain


def test_a_model_drafts_for_itself_without_some_layers_or_in_fewer_bits(tiny_path: Path) -> None:
    prompts = ["the cat", "a", "in the"]
    plain = ids(LLM(tiny_path, num_threads=1, cache=False), prompts, greedy(40), 3)
    for settings in ("skip=1", "weights=int4", "skip=0,weights=int8"):
        llm = LLM(tiny_path, f"draft=self:{settings} pace=fixed", num_threads=1, cache=False)
        assert ids(llm, prompts, greedy(40), 3) == plain
        assert llm.ledger.drafts.num_drafts > 0
    for skip, message in (("2", "there is no layer 2 to skip; the model has layers 0 to 1"), ("0-1", "all layers")):
        with pytest.raises(StackError, match=message):
            LLM(tiny_path, f"draft=self:skip={skip}", num_threads=1, cache=False)


def test_layers_that_are_skipped_are_not_read(tiny_path: Path) -> None:
    """The rest computes what a model of these layers alone does."""
    llm = LLM(tiny_path, "draft=self:skip=0 pace=fixed", num_threads=1, cache=False)
    [target, draft] = llm.engine.readers
    tensors, spec = target.model.tensors, target.model.spec  # type: ignore[attr-defined]
    rest = {k.replace("layers.1.", "layers.0."): t for k, t in tensors.items() if not k.startswith("layers.0.")}
    alone = NativeModel(draft.model.spec, rest, 4, 1)  # type: ignore[attr-defined]
    assert (spec.num_layers, alone.spec.num_layers) == (2, 1)
    batch = ForwardBatch(*(np.array(a, np.int32) for a in ([5, 6], [0, 1], [0, 2], [2], [[0]], [0, 1])))
    assert np.array_equal(alone.forward(batch).logits, draft.model.forward(batch).logits)


def test_draft_models_share_the_kv_budget(tiny_path: Path, tiny_gguf: Callable[..., Path]) -> None:
    other, room = tiny_gguf(layers=1, seed=5), 1 << 20
    for draft in ("none", f"model:model={other}", f"model:model={other}|self:skip=0"):
        llm = LLM(tiny_path, f"draft={draft}", num_threads=1, cache=False, kv_cache_bytes=room, max_model_len=64)
        sizes = [r.pool.num_pages * PAGE_SIZE * r.model.kv_bytes_per_token for r in llm.engine.readers]  # type: ignore[attr-defined]
        assert room * 0.9 < sum(sizes) <= room


@pytest.mark.parametrize("params", ["greedy", "sampled"])
def test_a_head_changes_no_ids(params: str, tiny_path: Path, tmp_path: Path) -> None:
    """A head with random weights, alone and in a batch of eight, looped and behind n-grams."""
    drawn = SamplingParams(temperature=0.8, seed=3, max_tokens=40, ignore_eos=True, repetition_penalty=1.2)
    wanted = greedy(40) if params == "greedy" else drawn
    plain = LLM(tiny_path, num_threads=1, cache=False)
    folder = write_tiny_head(tmp_path / "head", tiny_path, plain.loaded.spec)
    prompts = [word * n for n, word in enumerate(TOPICS, 1)]
    want = ids(plain, prompts, wanted, 8)
    head = f"head:name={folder},k=2"
    for draft in (head, f"looped:base=({head}),gate=-inf", f"looped:base=({head}),gate=-5", f"ngram:branches=2|{head}"):
        llm = LLM(tiny_path, f"draft={draft} pace=fixed", num_threads=1, cache=False)
        assert ids(llm, prompts, wanted, 1) == want
        assert ids(llm, prompts, wanted, 8) == want
        llm.engine.check()
        assert llm.ledger.drafts.num_drafts > 0


def test_stop_strings_inside_accepted_drafts(tiny_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    plain = LLM(tiny_path, num_threads=1, cache=False)
    text = plain.generate("the cat", params)[0].outputs[0].text
    stopped = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=text[9:12])
    [want] = plain.generate("the cat", stopped)[0].outputs
    [got] = (
        LLM(tiny_path, f"draft=model:model={tiny_path},k=7 pace=fixed", num_threads=1, cache=False)
        .generate("the cat", stopped)[0]
        .outputs
    )
    assert (got.text, got.token_ids, got.stop_reason) == (want.text, want.token_ids, text[9:12])


def test_a_draft_model_of_another_vocabulary_is_refused(smollm2_path: Path, tiny_path: Path) -> None:
    with pytest.raises(StackError, match=r"another vocabulary than the model .*49152 tokens.*same family"):
        LLM(smollm2_path, f"draft=model:model={tiny_path}", num_threads=1, max_model_len=128)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", DRAFTS)
def test_the_ids_of_plain_decoding_long(name: str, smollm2_path: Path) -> None:
    plain = ids(load(smollm2_path, None), MANY, greedy(128), 8)
    llm = load(smollm2_path, DRAFTS[name])
    assert ids(llm, MANY, greedy(128), 1) == plain
    assert ids(llm, MANY, greedy(128), 8) == plain
    assert ids(load(smollm2_path, DRAFTS[name], pace="goodput"), MANY, greedy(128), 8) == plain

"""Drafts that are trees: their trunk, how they go on, and the leaves beside a chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_head import engine_with_head, head_reader
from fake_model import VOCAB, expected, generate, logits_after

from narrows.drafters.head import Head
from narrows.sampling import SamplingParams
from narrows.trees import joined, one_hot, trunk
from narrows.types import Draft

PROMPT = [3, 1, 4, 1, 5]


def tree(tokens: list[int], parents: list[int] | None = None, **parts: Any) -> Draft:
    return Draft(np.array(tokens, np.int32), None if parents is None else np.array(parents, np.int32), **parts)


@pytest.mark.parametrize(
    ("draft", "length"),
    [
        (tree([7, 8]), 2),
        (tree([7, 8, 9], [-1, 0, 1]), 3),
        (tree([7, 8, 9], [-1, -1, 0]), 1),
        (tree([7, 8, 9], [-1, 0, 0]), 2),
    ],
)
def test_the_trunk_is_what_follows_one_after_the_other(draft: Draft, length: int) -> None:
    found = trunk(draft)
    assert found.parents is None
    assert found.tokens.tolist() == draft.tokens[:length].tolist()


def test_a_tree_goes_on_from_the_end_of_its_trunk() -> None:
    a, b = tree([1, 2, 3, 4], [-1, 0, 0, 2]), tree([5, 6, 7], [-1, -1, 1])
    whole = joined(a, b)
    assert whole.parents is not None
    assert all(parent < i for i, parent in enumerate(whole.parents))
    assert trunk(whole).tokens.tolist() == [1, 2, 5]
    assert sorted(whole.paths()) == [[1], [1, 2], [1, 2, 5], [1, 2, 6], [1, 2, 6, 7], [1, 3], [1, 3, 4]]


def test_what_belongs_to_a_token_stays_with_it() -> None:
    a = tree([1, 2, 3], [-1, 0, 0], logprobs=np.array([-1, -2, -3], np.float32))
    b = tree([0, 2], [-1, -1], logprobs=np.array([-4, -5], np.float32), probs=np.array([[0.5, 0, 0.5, 0]] * 2))
    whole = joined(a, b)
    assert whole.probs is not None and whole.logprobs is not None
    assert whole.tokens.tolist() == [1, 2, 0, 3, 2]
    assert whole.logprobs.tolist() == [-1, -2, -4, -3, -5]
    assert np.array_equal(whole.probs[[0, 1, 3]], one_hot([1, 2, 3], 4))


def test_chains_make_a_chain() -> None:
    assert joined(tree([1, 2]), tree([3], [-1])).parents is None


def test_certain_tokens_take_no_square_of_the_vocabulary() -> None:
    joined(tree([1]), tree([2], probs=np.ones((1, 200_000)) / 200_000))


def test_leaves_are_the_likeliest_that_were_passed_over() -> None:
    """A head that puts the right token second everywhere is right in its leaves."""

    def second(tokens: np.ndarray) -> np.ndarray:
        logits = np.array(logits_after(tokens))
        best = int(logits.argmax())
        logits[(best + 1) % VOCAB] = logits[best] + 1
        return logits

    params = SamplingParams(temperature=0, max_tokens=24)
    found = {}
    for leaves in (0, 1):
        engine, _ = engine_with_head(Head(k=1, leaves=leaves), head_reader(right=second))
        [output] = generate(engine, [PROMPT], params)
        assert output == expected(PROMPT, 24)
        found[leaves] = engine.ledger.num_steps
    assert found == {0: 24, 1: 13}  # the prompt's, then two tokens a step


def test_there_are_no_leaves_where_there_is_room_for_the_chain_alone() -> None:
    engine, _ = engine_with_head(Head(k=4, leaves=4))
    sizes: list[int] = []
    engine.target.model.before = lambda batch: sizes.append(len(batch.tokens))  # type: ignore[attr-defined]
    generate(engine, [PROMPT], SamplingParams(temperature=0, max_tokens=6))
    assert sizes == [5, 5]

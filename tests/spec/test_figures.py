"""The figures of speculation, as a person and a program read them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from narrows.ledger import DraftMetrics, Ledger, RequestMetrics, added, summary
from narrows.types import Draft


def draft(k: int) -> Draft:
    return Draft(np.arange(k, dtype=np.int32))


@pytest.fixture
def drafts() -> DraftMetrics:
    """Four steps: three of three guesses kept, one of two, none of three, and no draft at all."""
    out = DraftMetrics(seconds=1.0, num_bytes=600)
    for k, kept in ((3, 3), (2, 1), (3, 0)):
        out.observe(draft(k), kept, kept + 1)
    out.observe(None, 0, 1)
    out.reasons["nothing to propose"] = 1
    return out


def test_what_was_kept_by_position(drafts: DraftMetrics) -> None:
    assert (drafts.drafted, drafts.accepted) == ([3, 3, 2], [2, 1, 1])
    assert drafts.acceptance_length == 8 / 4
    figures = drafts.json()
    assert figures["acceptance_by_position"] == [2 / 3, 1 / 3, 1 / 2]
    assert (figures["drafted_tokens"], figures["accepted_tokens"]) == (8, 4)
    assert figures["target_forwards_per_token"] == 4 / 8
    assert figures["draft_bytes_per_token"] == 600 / 8
    assert figures["undrafted_steps"] == {"nothing to propose": 1}
    json.dumps(figures, allow_nan=False)


def test_a_tree_counts_its_depth_by_position_and_all_its_tokens() -> None:
    out = DraftMetrics()
    out.observe(Draft(np.arange(4, dtype=np.int32), np.array([-1, -1, 0, 1], np.int32)), 1, 2)
    assert (out.drafted, out.accepted, out.num_drafted) == ([1, 1], [1, 0], 4)


def test_figures_before_anything_happened() -> None:
    assert DraftMetrics().acceptance_length is None
    json.dumps(DraftMetrics().json(), allow_nan=False)
    assert DraftMetrics().summary(0) == "speculation: 1.00 tokens per target forward"


def test_the_line_after_an_answer(drafts: DraftMetrics) -> None:
    metrics = RequestMetrics(0, 5, num_output=8, first_token=1, last_token=2, forward_seconds=3, drafts=drafts)
    _, line = summary(metrics).splitlines()
    assert line == (
        "speculation: 2.00 tokens per target forward, kept by position 67% 33% 50%, drafting 25% of the time, "
        "no draft in 1 of 4 steps, mostly: nothing to propose"
    )
    assert "speculation" in metrics.json()


def test_without_a_drafter_nothing_is_said_of_it() -> None:
    metrics = RequestMetrics(0, 5, num_output=8, first_token=1, last_token=2)
    assert len(summary(metrics).splitlines()) == 1
    assert "speculation" not in metrics.json()


def test_totals_of_two_processes_are_one() -> None:
    a = Ledger(num_steps=2, forward_seconds=0.5)
    b = Ledger(num_steps=3, drafts=DraftMetrics(num_drafted=4, drafted=[2, 1], accepted=[1, 0], reasons={"x": 2}))
    both = added(a, added(b, b))
    assert (both.num_steps, both.forward_seconds) == (8, 0.5)
    assert (both.drafts.drafted, both.drafts.num_accepted, both.drafts.reasons) == ([4, 2], 2, {"x": 4})
    assert a == Ledger(num_steps=2, forward_seconds=0.5)

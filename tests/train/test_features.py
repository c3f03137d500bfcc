"""What heads learn from: the states of a text are recorded as the model writes it. Needs no torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from narrows import LLM
from narrows.train.base import Texts
from narrows.train.features import collect

TEXTS = Texts(tokens=1500, length=48)


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> LLM:
    return LLM(tiny_path, num_threads=1, cache=False)


@contextmanager
def untracked(label: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda done: None


def test_states_are_those_of_the_text_read_again(llm: LLM, tmp_path: Path) -> None:
    """Written in company and token by token, or read whole and alone by a run that goes on: the same bits."""
    first = collect(llm, "m", TEXTS, (0, 1), tmp_path / "first", untracked)
    folder = next((tmp_path / "first").iterdir())
    assert llm.engine.model is llm.loaded.model
    assert len(first.texts) > 20
    later = tmp_path / "later" / folder.name
    later.mkdir(parents=True)
    shutil.copy(folder / "answers-0.jsonl", later)
    again = collect(llm, "m", TEXTS, (0, 1), tmp_path / "later", untracked)
    assert again.texts == first.texts
    assert np.array_equal(again.states, first.states)
    assert np.any(first.states, axis=1).all()


def test_a_recording_that_was_stopped_goes_on(llm: LLM, tmp_path: Path) -> None:
    whole = collect(llm, "m", TEXTS, (1,), tmp_path / "whole", untracked)

    @contextmanager
    def stopping(label: str, total: int) -> Iterator[Callable[[int], None]]:
        left = 4

        def advance(done: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        yield advance

    with pytest.raises(KeyboardInterrupt):
        collect(llm, "m", TEXTS, (1,), tmp_path / "stopped", stopping)
    again = collect(llm, "m", TEXTS, (1,), tmp_path / "stopped", untracked)
    assert again.texts == whole.texts
    assert np.array_equal(again.states, whole.states)

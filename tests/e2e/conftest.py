"""Engines that the end-to-end tests of a module share."""

from __future__ import annotations

from pathlib import Path

import pytest

from narrows import LLM


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> LLM:
    return LLM(smollm2_path, num_threads=2, max_model_len=1024)


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> LLM:
    return LLM(tiny_path, num_threads=1, cache=False)

"""Fixtures for every test: the default model when it is on disk, and tiny models written on the spot."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that writes a new tiny GGUF and returns its path; `write_tiny_gguf` says what can be asked of it."""

    def make(**changes: Any) -> Path:
        return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", **changes)

    return make


@pytest.fixture(scope="session")
def tiny_path(tiny_gguf: Callable[..., Path]) -> Path:
    """One tiny GGUF shared by the tests that only read it."""
    return tiny_gguf()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model; `make test` fetches it, and tests that need it skip where it could not."""
    cache = Path(os.environ.get("NARROWS_CACHE", "~/.cache/narrows")).expanduser()
    folder = Path(os.environ.get("NARROWS_MODELS", cache / "models")).expanduser()
    path = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.skip(f"the default model is not at {path}; `make model` fetches it")
    return path

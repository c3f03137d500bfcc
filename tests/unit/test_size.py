"""What a newcomer reads first stays readable in one sitting."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMITS = {"src/narrows/types.py": 200, "src/narrows/engine.py": 300, "native/core/model.cc": 350}
SOURCES = sorted(p for top in ("src", "native") for p in (ROOT / top).rglob("*.*") if p.suffix in (".py", ".h", ".cc"))


@pytest.mark.parametrize("path", [str(p.relative_to(ROOT)) for p in SOURCES])
def test_files_are_short(path: str) -> None:
    assert len((ROOT / path).read_text().splitlines()) <= LIMITS.get(path, 500)

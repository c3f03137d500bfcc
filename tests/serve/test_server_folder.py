"""What a server leaves in the temporary directory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from narrows.serve.folder import own_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_with_its_server(temporary: Path) -> None:
    with own_folder() as folder:
        (folder / "socket").touch()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []


def test_what_a_killed_server_left_goes_and_what_is_in_use_stays(temporary: Path) -> None:
    (temporary / "narrows-killed").mkdir()
    (temporary / "narrows-killed" / "lock").touch()
    (temporary / "narrows-other").mkdir()  # not a server's
    with own_folder() as first, own_folder() as second:
        assert sorted(temporary.iterdir()) == sorted([first, second, temporary / "narrows-other"])

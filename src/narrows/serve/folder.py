"""A folder of a server's own, for the sockets of its processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..machine import alone_in

PREFIX, LOCK = "narrows-", "lock"


@contextmanager
def own_folder() -> Iterator[Path]:
    """Nobody else may enter it. It goes with the server; what servers that were killed left behind goes now."""
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    descriptor = os.open(folder / "new", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(folder / "new", folder / LOCK)  # nobody finds it without its lock
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    """A lock ends with the process that holds it, also where its number means nothing, as in another container."""
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError), alone_in(lock):  # it is another user's, or in use
            shutil.rmtree(lock.parent, ignore_errors=True)

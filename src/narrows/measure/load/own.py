"""A server of our own, for as long as it is measured."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..servers import running


@contextmanager
def own_server(model: str, *options: str) -> Iterator[str]:
    """Runs `narrows serve MODEL` on a free port and gives its URL once it is ready. Raises StartError."""
    command = [sys.executable, "-m", "narrows", "serve", model, "--port", "0", *options]
    with running("the server", command, _url, "/readyz") as url:
        yield url


def _url(written: str) -> str | None:
    found = re.search(r"on (http://\S+)", written)
    return found[1] if found else None

"""Servers that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import PAGE_BYTES, Server


@pytest.fixture(scope="session")
def smol(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default model; for what depends on its words."""
    log = tmp_path_factory.mktemp("serve") / "log"
    server = Server(log, smollm2_path, "--served-model-name", "smollm2", "--threads", "1", "-c", "1024")
    yield server.ready()
    server.close()


@pytest.fixture(scope="session")
def tiny(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny random model called "tiny", behind an API key, for everything else."""
    folder = tmp_path_factory.mktemp("serve")
    (folder / "keys").write_text("# of the tests\nfirst-key\nsecond-key\n")
    args = (tiny_path, "--threads", "1", "--api-key-file", folder / "keys")
    server = Server(folder / "log", *args, key="second-key")
    yield server.ready()
    server.close()


@pytest.fixture(scope="session")
def wide(tiny_gguf: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny random model with room for long prompts, but with so few pages that requests have to wait for some."""
    path = tiny_gguf(context=4096)
    cache = ("--kv-cache-bytes", str(66 * PAGE_BYTES))
    server = Server(tmp_path_factory.mktemp("serve") / "log", path, "--threads", "1", *cache)
    yield server.ready()
    server.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers of a test's own."""
    servers: list[Server] = []

    def make(*args: Any, **options: Any) -> Server:
        servers.append(Server(tmp_path / f"log{len(servers)}", *args, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()

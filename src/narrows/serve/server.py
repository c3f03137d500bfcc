"""Runs a server: the listening socket, the models' processes, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn
import zmq.asyncio

from .app import create_app
from .connection import connection
from .folder import own_folder
from .gateway import Gateway, ModelOptions
from .settings import Settings

log = logging.getLogger("narrows.serve")
MAX_HEADER_BYTES = 64 << 10
KEEP_ALIVE_SECONDS = 75
MAX_FILES = 1 << 16
GRACE_SECONDS = 5  # to bring out the last errors


def run(settings: Settings, models: Sequence[ModelOptions]) -> None:
    """Serves until a signal says to stop. Raises ValueError when a model cannot be loaded, OSError for the address."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"cannot listen at {settings.host} port {settings.port}: {error.strerror or error}") from None
    with listener, own_folder() as folder:
        _allow_connections()
        asyncio.run(_serve(settings, models, listener, folder))


async def _serve(settings: Settings, models: Sequence[ModelOptions], listener: socket.socket, folder: Path) -> None:
    fatal: list[str] = []

    def fail(message: str) -> None:
        fatal.append(message)
        gateway.draining = server.should_exit = True

    gateway = Gateway(settings, models, fail)
    config = uvicorn.Config(
        create_app(gateway),
        http=connection(settings.body_timeout, settings.send_timeout),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(settings.shutdown_timeout) + GRACE_SECONDS,
    )
    server = _Server(config, gateway)
    context = zmq.asyncio.Context()
    tasks = [asyncio.create_task(backend.run(context, folder)) for backend in gateway.backends]
    host, port = listener.getsockname()[:2]
    log.info("serving %s on http://%s:%d", ", ".join(gateway.models), f"[{host}]" if ":" in host else host, port)
    try:
        await server.serve(sockets=[listener])
    finally:
        gateway.fail_all()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        context.destroy(linger=0)
        if gateway.tracing is not None:
            gateway.tracing.close()
    if fatal:
        raise ValueError(fatal[0])


class _Server(uvicorn.Server):
    """On the first signal lets requests finish for a while, on the second ends them, on the third leaves at once."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self._num_signals = 0

    def handle_exit(self, sig: int, frame: object) -> None:
        self._num_signals += 1
        self._loop.call_soon_threadsafe(self._leave, signal.Signals(sig).name)

    def _leave(self, name: str) -> None:
        timeout = self._gateway.settings.shutdown_timeout if self._num_signals == 1 else 0
        log.info("%s: requests under way have %g s to finish", name, timeout)
        self._gateway.draining = self.should_exit = True
        self.force_exit = self._num_signals > 2
        self._loop.call_later(timeout, self._gateway.fail_all)


def _allow_connections() -> None:
    """As many open files as are of use and the system lets this process have: each connection is one."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if most == resource.RLIM_INFINITY else min(most, MAX_FILES)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def setup_logging() -> None:
    """Everything to stderr, one line each."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)

"""What a server is started with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = ("localhost", "127.0.0.1", "::1")
KEY_VARIABLE = "NARROWS_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the gateway. Seconds and bytes; lists that are empty allow nothing more than the default."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()  # none: everybody may ask
    allowed_hosts: tuple[str, ...] = ()  # names the Host header may carry besides loopback and `host`; "*" is any
    cors_origins: tuple[str, ...] = ()  # web pages of other origins that may ask; "*" is any
    max_queued_requests: int = 256  # answers waiting beyond those that run at once
    requests_per_minute: float = 0  # of each key; 0 is any number
    max_body_bytes: int = 2 << 20  # reading JSON holds up everybody
    body_timeout: float = 30  # for a head, and then for a body, to arrive
    send_timeout: float = 60  # for a client to take something of what waits for it
    request_timeout: float = 3600
    shutdown_timeout: float = 30
    stall_timeout: float = 120  # without a step while there is work: the process is replaced
    otlp_endpoint: str | None = None  # of a collector of traces

    def hosts(self) -> frozenset[str] | None:
        """Names the Host header may carry, or None for any: a server on all interfaces cannot know its names."""
        if "*" in self.allowed_hosts or (self.host in ("0.0.0.0", "::") and not self.allowed_hosts):
            return None
        return frozenset(name.lower() for name in (*LOOPBACK, self.host, *self.allowed_hosts))


def read_api_keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """Keys from options, from a file with one a line, and from $NARROWS_API_KEY, by commas.

    Raises ValueError for a file without keys and for a key that a header cannot carry: a server that was meant to ask
    for keys must not start without.
    """
    keys = [*given]
    if file is not None:
        lines = [line.strip() for line in file.read_text().splitlines()]
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise ValueError(f"{file} holds no API keys; write one a line")
        keys += found
    keys += [key.strip() for key in os.environ.get(KEY_VARIABLE, "").split(",") if key.strip()]
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError("an API key must be printable ASCII without spaces")
    return tuple(dict.fromkeys(keys))

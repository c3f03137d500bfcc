"""Memory read bandwidth: the number that bounds decoding, measured once per kind of machine and remembered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from narrows.measure.provenance import cpu_model, num_cpus
from narrows.measure.samples import Samples

from ..machine import cache_dir, keep

QUICK_BYTES = 256 << 20  # over most last-level caches, yet written and read in a fraction of a second
FULL_BYTES = 2 << 30


def cache_file() -> Path:
    """Where measured bandwidths are remembered."""
    return cache_dir() / "bandwidth.json"


def machine_key() -> str:
    """The same for every machine of a kind, whatever its name."""
    return f"{cpu_model()} x{num_cpus()}"


def bound(bytes_per_token: float, gigabytes_per_second: float) -> float:
    """Tokens/s that reading `bytes_per_token` at full bandwidth allows: no decoder of those bytes is faster."""
    if bytes_per_token <= 0:
        raise ValueError(f"bytes_per_token is {bytes_per_token}; a token that reads nothing has no bound")
    return gigabytes_per_second * 1e9 / bytes_per_token


def measure(threads: int, *, num_bytes: int = FULL_BYTES, repeats: int = 5) -> Samples:
    """GB/s (10^9) of `threads` threads reading `num_bytes` bytes, per repeat; the best ever is remembered."""
    from narrows import _native

    samples = Samples(tuple(_native.read_bandwidth(num_bytes, threads, repeats)))
    _remember(threads, samples.max)
    return samples


def bandwidth(threads: int) -> float:
    """GB/s of this machine with `threads` threads: remembered, or measured now in a fraction of a second."""
    return known(threads) or measure(threads, num_bytes=QUICK_BYTES, repeats=2).max


def known(threads: int) -> float | None:
    """GB/s of this machine with `threads` threads, if that was ever measured."""
    found = _load().get(machine_key())
    value = found.get(str(threads)) if isinstance(found, dict) else None
    return float(value) if isinstance(value, int | float) and 0 < value < float("inf") else None


def _load() -> dict[str, Any]:
    try:
        content = json.loads(cache_file().read_text())
    except (OSError, ValueError):  # absent or damaged: measured again
        return {}
    return content if isinstance(content, dict) else {}


def _remember(threads: int, value: float) -> None:
    # The best, because a bound is what the machine can do when nobody disturbs it.
    value = max(value, known(threads) or 0)
    content = _load()
    found = content.get(machine_key())
    content[machine_key()] = {**(found if isinstance(found, dict) else {}), str(threads): round(value, 3)}
    keep(cache_file(), lambda file: file.write(json.dumps(content, indent=2).encode()))

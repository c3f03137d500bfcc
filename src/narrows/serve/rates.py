"""How often each key may ask."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from .errors import ApiError


class RateLimit:
    """A bucket for each key: it holds a minute's requests, refills evenly, and each request takes one.

    Keys are those of the server, so that there are no more buckets than keys.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._left: dict[str, tuple[float, float]] = {}  # requests, and when that was

    def take(self, key: str) -> None:
        """Raises ApiError when the key has asked too often; it says when to come back."""
        if not self._per_minute:
            return
        now = self._clock()
        left, then = self._left.get(key, (self._per_minute, now))
        left = min(self._per_minute, left + (now - then) * self._per_minute / 60)
        if left < 1:
            wait = math.ceil((1 - left) * 60 / self._per_minute)
            raise ApiError(
                429,
                f"more than {self._per_minute:g} requests a minute; try again in {wait} s",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(wait)},
            )
        self._left[key] = left - 1, now

"""The work of one HTTP request at a backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import wire
from .errors import ApiError

if TYPE_CHECKING:
    from .backend import Backend

GRACE_SECONDS = 5.0
MAX_UNREAD = 4096  # events; a client further behind than that and its connection's buffer does not read


@dataclass(slots=True, eq=False)
class Job:
    """One prompt under way. Times are monotonic seconds of this process."""

    submit: wire.Submit
    position: int  # among the prompts of its call
    call: Call
    num_open: int  # answers that are not finished
    arrival: float
    started: float | None = None
    first_token: float | None = None  # of all answers
    attempts: int = 0
    last_token: dict[int, float] = field(default_factory=dict)  # by answer


class Call:
    """The prompts of one HTTP request: an iterator over (position of the prompt, delta) until all answers are there.

    Raises ApiError when an answer will not come. Whoever leaves early closes it, which cancels what is under way.
    """

    def __init__(self, backend: Backend, deadline: float | None) -> None:
        self._backend = backend
        self._timer: asyncio.TimerHandle | None = None
        if deadline is not None:  # the subserver keeps it, unless it hangs
            self._timer = asyncio.get_running_loop().call_at(deadline + GRACE_SECONDS, self._expire)
        self.jobs: list[Job] = []
        self.events: asyncio.Queue[tuple[int, wire.Delta] | ApiError] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[tuple[int, wire.Delta]]:
        left = sum(job.submit.params.n for job in self.jobs)
        while left:
            event = await self.events.get()
            if isinstance(event, ApiError):
                raise event
            left -= event[1].finish_reason is not None
            yield event

    def tell(self, event: tuple[int, wire.Delta] | ApiError) -> None:
        """Hands the reader an event. One that is too far behind has had its last: its work is cancelled."""
        self.events.put_nowait(event)
        if self.events.qsize() == MAX_UNREAD:
            self.close()
            self.events.put_nowait(ApiError(408, "the client reads too slowly", code="client_too_slow"))

    def close(self) -> None:
        """Cancels what is not finished; safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
        for job in self.jobs:
            self._backend.cancel(job)

    def _expire(self) -> None:
        self.tell(ApiError(504, "the request's deadline has passed", code="deadline"))

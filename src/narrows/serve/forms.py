"""Forms of answers are tried before an engine sees them: a few at a time, so that costly ones hold up nobody else."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from starlette.requests import Request

from ..constrain.guidance import Guidance
from ..sampling import ParamError, SamplingParams
from ..text import Tokenizer
from .errors import ApiError
from .events import until_disconnect

MAX_TRIALS = 2  # at once: each may take a processor for seconds
MAX_WAITING = 16  # of one key, those being tried included
MAX_KNOWN = 1024  # forms remembered as good


class Trials:
    """Threads of their own for new forms, of all models of a server."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_TRIALS, "forms")
        self._waiting: Counter[str] = Counter()
        self._closed = False

    def close(self) -> None:
        """Passes over what still waits: the server is going, and no engine will see it."""
        self._closed = True

    async def run(self, key: str, work: Callable[[], object]) -> None:
        """Does work for a caller, in its turn. Raises what the work raises, and ApiError when too much waits."""
        if self._waiting[key] >= MAX_WAITING:
            message = f"{MAX_WAITING} new forms of answers are being tried already; try again later"
            raise ApiError(429, message, code="too_many_forms", headers={"Retry-After": "1"})
        self._waiting[key] += 1
        trial = asyncio.get_running_loop().run_in_executor(self._threads, lambda: self._closed or work())
        trial.add_done_callback(lambda _: self._done(key))  # though nobody may wait for it any more
        await trial

    def _done(self, key: str) -> None:
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]


class Forms:
    """The forms that answers of one model are asked to keep."""

    def __init__(self, tokenizer: Tokenizer, trials: Trials) -> None:
        self._grammars = Guidance(tokenizer, tokenizer.vocab_size)
        self._trials = trials
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def check(self, params: SamplingParams, request: Request, name: str = "structured_outputs") -> None:
        """Raises ApiError for a form that cannot be kept; `name` is what the request calls it.

        One that is known to be good does not wait; one whose client leaves is not tried. Raises ClientGone then.
        """
        form = params.structured_outputs
        if not form:
            return
        digest = sha256(json.dumps(form).encode()).digest()
        if digest not in self._known:
            trial = self._trials.run(request.scope["caller"].key, lambda: self._grammars.matcher(form))
            try:
                await until_disconnect(request.receive, trial)
            except ParamError as error:
                field = error.field if name == "structured_outputs" else name
                raise ApiError(400, error.message.replace(error.field, field, 1), param=field) from None
        self._known[digest] = None
        self._known.move_to_end(digest)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

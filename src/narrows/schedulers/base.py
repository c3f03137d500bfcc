"""The seam of schedulers. They decide on numbers and change nothing; the engine carries the plan out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..types import TARGET, Cursor, Request, StepPlan


class Pages(Protocol):
    """What a scheduler may know about the pool."""

    @property
    def page_size(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    def pages_for(self, num_tokens: int) -> int: ...
    def num_owned(self, cursor: Cursor) -> int: ...
    def lookup(self, request: Request, limit: int) -> list[int]: ...
    def num_unheld(self, pages: Sequence[int]) -> int: ...


class Scheduler(Protocol):
    """Every request has a cursor behind its tokens; a step lets some of them catch up."""

    def plan(self, waiting: Sequence[Request], running: Sequence[Request], pages: Pages) -> StepPlan:
        """Which requests advance. Items of the plan that wait start at what the pool remembers of them.

        Preempted requests give their pages back before the step; they are not in the plan's items.
        """
        ...


def num_behind(request: Request) -> int:
    """Tokens the cursor has yet to read, drafted ones not included."""
    return len(request.tokens) - request.cursors[TARGET].num_read


def num_drafted(request: Request) -> int:
    """Tokens of its draft, to be tested in this step or never."""
    return len(request.draft.tokens) if request.draft else 0


def prefix_limit(request: Request) -> int:
    """Tokens a request may take from the prefix cache: never its last, whose logits are wanted."""
    params = request.params
    wants_all = params.prompt_logprobs is not None or params.skip_reading_prefix_cache or request.pooled is not None
    return 0 if wants_all else len(request.tokens) - 1

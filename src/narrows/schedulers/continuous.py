"""First come, first served, a token budget a step: requests join and leave between any two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import TARGET, Request, StepPlan
from .base import Pages, num_behind, num_drafted, prefix_limit


@dataclass(frozen=True, slots=True)
class Continuous:
    """`budget` tokens a step at most, `max_num_seqs` requests running at most."""

    budget: int = 512
    max_num_seqs: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.budget <= 65536:
            raise ValueError(f"budget is {self.budget}; it must be between 1 and 65536")
        if not 1 <= self.max_num_seqs <= 4096:
            raise ValueError(f"max_num_seqs is {self.max_num_seqs}; it must be between 1 and 4096")

    def plan(self, waiting: Sequence[Request], running: Sequence[Request], pages: Pages) -> StepPlan:
        items: list[tuple[Request, int]] = []
        left = list(running)  # those not planned yet; the latest arrival, last, is the first to be preempted
        preempted: list[Request] = []
        budget, free = self.budget, pages.num_free

        def advance(request: Request, num_read: int, num_held: int, want: int) -> int:
            """Plans up to `want` tokens, as far as budget and free pages go; returns the pages held then."""
            nonlocal budget, free
            want = min(want, budget, (num_held + free) * pages.page_size - num_read)
            if want > 0:
                grown = max(num_held, pages.pages_for(num_read + want))
                items.append((request, want))
                budget, free, num_held = budget - want, free - grown + num_held, grown
            return num_held

        owed = 0  # pages that running requests still need for the tokens they have and one more
        while left and budget:
            request = left.pop(0)
            cursor = request.cursors[TARGET]
            while not free and cursor.num_read == len(cursor.pages) * pages.page_size:
                victim = left.pop() if left else request
                preempted.append(victim)
                free += pages.num_owned(victim.cursors[TARGET])
                if victim is request:
                    break
            else:
                want = num_behind(request)
                want += min(num_drafted(request), max(0, budget - want - len(left)))  # a draft takes no one's turn
                held = advance(request, cursor.num_read, len(cursor.pages), want)
                owed += max(0, pages.pages_for(len(request.tokens) + 1) - held)
        owed += sum(pages.pages_for(len(r.tokens) + 1) - len(r.cursors[TARGET].pages) for r in left)

        num_running = len(running)
        for request in waiting if not preempted else ():
            if not budget or num_running == self.max_num_seqs:
                break
            shared = pages.lookup(request, prefix_limit(request))
            taken = pages.num_unheld(shared)
            total = pages.pages_for(len(request.tokens) + 1)
            if total - len(shared) + taken + owed > free:
                break  # nobody overtakes: a long request is not starved by short ones
            free -= taken
            num_read = len(shared) * pages.page_size
            owed += total - advance(request, num_read, len(shared), len(request.tokens) - num_read)
            num_running += 1
        return StepPlan(items, preempted)

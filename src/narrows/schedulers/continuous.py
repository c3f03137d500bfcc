"""A token budget a step, shared fairly between owners; requests join and leave between any two steps.

Requests that are about to choose a token go first, so that however many prompts wait, each answer gets on in every
step, and a step reads `budget` tokens at most. What is left of the budget goes to prompts, a turn at a time, to the
owner served least so far (virtual token counters: Sheng et al. 2024, "Fairness in Serving Large Language Models").
Among the prompts of one owner the lower `priority` goes first, then the earlier. One owner alone is served first come,
first served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from ..settings import check_ranges
from ..types import TARGET, Request, Status, StepPlan
from .base import Pages, num_behind, num_drafted, prefix_limit


@dataclass(slots=True)
class Share:
    """What an owner had so far, in tokens read; its requests carry it, and it is gone when they are."""

    served: int


@dataclass(frozen=True, slots=True)
class Continuous:
    """`budget` tokens a step at most, `max_num_seqs` requests running at most."""

    budget: int = 512
    max_num_seqs: int = 64

    def __post_init__(self) -> None:
        check_ranges(self, budget=(1, 65536), max_num_seqs=(1, 4096))

    def plan(self, waiting: Sequence[Request], running: Sequence[Request], pages: Pages) -> StepPlan:
        shares = _shares(waiting, running)
        items: list[tuple[Request, int]] = []
        left = list(running)  # those not planned yet
        preempted: list[Request] = []
        budget, free = self.budget, pages.num_free
        owed = sum(_missing(request, pages) for request in running)  # pages, for the tokens they have and one more

        def advance(request: Request, num_read: int, num_held: int, want: int) -> int:
            """Plans up to `want` tokens, as far as budget and free pages go; returns the pages it takes."""
            nonlocal budget, free
            want = min(want, budget, (num_held + free) * pages.page_size - num_read)
            if want <= 0:
                return 0
            grown = max(0, pages.pages_for(num_read + want) - num_held)
            items.append((request, want))
            budget, free = budget - want, free - grown
            shares[request.owner].served += want
            return grown

        def go_on(request: Request) -> None:
            """Advances a running request, at the cost of the latest when there are no pages."""
            nonlocal free, owed
            cursor = request.cursors[TARGET]
            while not free and cursor.num_read == len(cursor.pages) * pages.page_size:
                if left == [request]:  # the others had their turn; before they need more, they will make room for it
                    left.clear()
                    return
                victim = max(left, key=_arrival)
                left.remove(victim)
                preempted.append(victim)
                owed -= _missing(victim, pages)
                free += pages.num_owned(victim.cursors[TARGET])
                if victim is request:
                    return
            left.remove(request)
            want = num_behind(request)
            want += min(num_drafted(request), max(0, budget - want - len(left)))  # a draft takes no one's turn
            if grown := advance(request, cursor.num_read, len(cursor.pages), want):
                owed -= min(_missing(request, pages), grown)

        def admit(request: Request) -> bool:
            """Begins a request that waits, if there will be pages for all its tokens."""
            nonlocal free, owed
            shared = pages.lookup(request, prefix_limit(request))
            taken = pages.num_unheld(shared)
            total = pages.pages_for(len(request.tokens) + 1)
            if total - len(shared) + taken + owed > free:
                return False
            free -= taken
            num_read = len(shared) * pages.page_size
            grown = advance(request, num_read, len(shared), len(request.tokens) - num_read)
            owed += total - len(shared) - grown
            return True

        # Those that are about to choose a token, and those with a page or more to read before.
        near: list[tuple[int, int, float, Request]] = []
        far: list[Request] = []
        for request in running:
            if (behind := num_behind(request)) < pages.page_size:
                near.append((behind, shares[request.owner].served, request.arrival, request))
            else:
                far.append(request)
        for *_, request in sorted(near, key=itemgetter(0, 1, 2)):
            if budget and request in left:
                go_on(request)

        num_running = len(running)
        open_to_new = num_running < self.max_num_seqs and not preempted
        turns: dict[str, list[Request]] = {}  # by owner, the next last
        for request in reversed(sorted([*far, *(waiting if open_to_new and budget else ())], key=_turn)):
            turns.setdefault(request.owner, []).append(request)
        while budget and turns:
            owner = min(turns, key=lambda o: (shares[o].served, turns[o][-1].arrival))
            request = turns[owner].pop()
            if not turns[owner]:
                del turns[owner]
            if request.status is Status.RUNNING:
                if request in left:
                    go_on(request)
            elif open_to_new:  # nobody overtakes one that does not fit: a long request is not starved by short ones
                open_to_new = num_running < self.max_num_seqs and not preempted and admit(request)
                num_running += open_to_new
        return StepPlan(items, preempted)


def _arrival(request: Request) -> float:
    """The earliest of all is never preempted, so that there is always one that ends."""
    return request.arrival


def _turn(request: Request) -> tuple[int, bool, float]:
    """The order of one owner's requests; one that has begun is finished first."""
    return request.priority, request.status is Status.WAITING, request.arrival


def _missing(request: Request, pages: Pages) -> int:
    """Pages a running request still needs for the tokens it has and one more."""
    return max(0, pages.pages_for(len(request.tokens) + 1) - len(request.cursors[TARGET].pages))


def _shares(waiting: Sequence[Request], running: Sequence[Request]) -> dict[str, Share]:
    """By owner. One that comes, or comes back, starts with the least of those who wait: nobody saves up turns."""
    shares: dict[str, Share] = {}
    queued: dict[str, Share] = {}
    new: list[Request] = []
    for requests, found in ((running, shares), (waiting, queued)):
        for request in requests:
            share = request.state.get("share")
            if share is None:
                new.append(request)
            else:
                found[request.owner] = share
    shares |= queued
    if new:
        least = min((share.served for share in queued.values()), default=None)
        if least is None:
            least = max((share.served for share in shares.values()), default=0)
        for request in new:
            share = request.state["share"] = shares.setdefault(request.owner, Share(least))
            if request.owner not in queued:
                share.served = max(share.served, least)
    return shares

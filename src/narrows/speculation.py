"""Before a step, guesses; after it, what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from .costs import MeasuredCosts
from .drafters.base import Ask, Drafter, Tools
from .ledger import DraftMetrics, Ledger
from .pacers.base import Pacer
from .reader import Reader
from .types import Draft, Request, StepPlan, Verdict


@dataclass(slots=True)
class Speculation:
    """A drafter, who decides how much it drafts, and what that has cost so far.

    `readers` are the drafter's models by name; `clock` gives seconds.
    """

    drafter: Drafter
    pacer: Pacer
    readers: Mapping[str, Reader] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter
    costs: MeasuredCosts = field(default_factory=MeasuredCosts)

    def propose(
        self,
        requests: Sequence[Request],
        rooms: Sequence[int],
        ledger: Ledger,
        wants_probs: bool = False,
        end_ids: Collection[int] = (),
    ) -> list[Draft | None]:
        """For each request, about to choose its next token, a draft of at most as many tokens as it has room for.

        `rooms` are at most the drafter's `max_drafted`.
        """
        drafts: list[Draft | None] = [None] * len(requests)
        able = [i for i, room in enumerate(rooms) if room > 0]
        paces = self.pacer.pace([requests[i] for i in able], [rooms[i] for i in able], self.costs) if able else []
        reasons = dict.fromkeys(range(len(requests)), "no room for more tokens")
        reasons |= {i: pace.reason for i, pace in zip(able, paces, strict=True)}
        asks = {i: Ask(requests[i], pace.num_tokens) for i, pace in zip(able, paces, strict=True) if pace.num_tokens}
        if asks:
            proposed = self._ask(list(asks.values()), Tools(self.readers, wants_probs, end_ids), ledger)
            for i, draft in zip(asks, proposed, strict=True):
                drafts[i], reasons[i] = draft, "nothing to propose"
        for i, request in enumerate(requests):
            if drafts[i] is None:
                ledger.drafts.reasons[reasons[i]] += 1
                metrics_of(request).reasons[reasons[i]] += 1
        return drafts

    def _ask(self, asks: Sequence[Ask], tools: Tools, ledger: Ledger) -> list[Draft | None]:
        began, before = self.clock(), self._num_bytes()
        drafts = self.drafter.propose(asks, tools)
        seconds, num_bytes = self.clock() - began, self._num_bytes() - before
        ledger.drafts.seconds += seconds
        ledger.drafts.num_bytes += num_bytes
        for ask in asks:
            metrics_of(ask.request).seconds += seconds
            metrics_of(ask.request).num_bytes += num_bytes / len(asks)
        made = [(ask, draft) for ask, draft in zip(asks, drafts, strict=True) if draft is not None]
        if made and all(metrics_of(ask.request).num_drafts for ask, _ in made):  # the first includes reading the prompt
            self.costs.drafted(max(len(draft.tokens) for _, draft in made), seconds)
        return drafts

    def observe(self, plan: StepPlan, verdicts: Sequence[Verdict | None], seconds: float) -> None:
        """Notes what a forward took and what became of its drafts, before they are dropped."""
        drafted = [len(request.draft.tokens) if request.draft else 0 for request, _ in plan.items]
        for (request, _), verdict, num_drafted in zip(plan.items, verdicts, drafted, strict=True):
            if verdict is not None and num_drafted:
                self.costs.accepted(request, verdict.num_accepted, num_drafted)
        if all(n == k + 1 for (_, n), k in zip(plan.items, drafted, strict=True)):
            self.costs.verified(plan.num_tokens, seconds)

    def _num_bytes(self) -> int:
        return sum(reader.num_bytes for reader in self.readers.values())


def metrics_of(request: Request) -> DraftMetrics:
    """The figures of a request's speculation."""
    return request.state["metrics"].drafts

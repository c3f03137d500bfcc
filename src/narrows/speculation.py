"""Before a step, guesses; after it, what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .batch import num_straight
from .costs import MeasuredCosts
from .drafters.base import Ask, Drafter, Source, Tools
from .kv.pool import KvPool
from .ledger import DraftMetrics
from .pacers.base import Pace, Pacer
from .reader import DraftReader
from .types import TARGET, Draft, ForwardOutput, Request, StepPlan, Verdict

STATE = "speculation"  # the last step in which a request drafted
REST = 8  # steps from one in which nothing was to be drafted to the next that asks: only times change meanwhile
LONG_REST = 32  # once that was so again and again, for the same requests
PAUSE = 64  # steps without drafts after which readers are no longer in use


@dataclass(slots=True)
class Speculation:
    """A drafter, who decides how much it drafts, and what that has cost so far.

    `readers` are the drafter's models; `clock` gives seconds; `tools` are set by the engine.
    """

    drafter: Drafter
    pacer: Pacer
    readers: Mapping[Source, DraftReader] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter
    costs: MeasuredCosts = field(default_factory=MeasuredCosts)
    tools: Tools = field(default_factory=lambda: Tools({}))
    num_proposed: int = 0  # steps
    drafted: int = 0  # the last step in which drafts were made because they pay
    resting: str = ""  # why nothing was to be drafted when that was last asked
    rest: int = REST
    awake: int = 0  # the step that asks again
    asked: list[str] = field(default_factory=list)  # for which requests
    proposed: float = 0.0  # when

    def other(self, drafter: Drafter, pacer: Pacer) -> Speculation:
        """One that drafts with some of these readers, and has measured nothing yet."""
        readers = {source: self.readers[source] for source in drafter.sources}
        return Speculation(drafter, pacer, readers, self.clock, tools=replace(self.tools, readers=readers, state={}))

    def propose(
        self, requests: Sequence[Request], ends: Sequence[int], pool: KvPool, spare: int, totals: DraftMetrics
    ) -> list[Draft | None]:
        """Drafts for requests that are about to choose a token; the figures go to them and to `totals`.

        Args:
            ends: tokens at which each request ends: a draft leaves one of them to the target.
            pool: the target's, of which drafts may take `spare` pages in all.
        """
        self.num_proposed += 1
        ids = [request.id for request in requests]
        if self.resting and self.num_proposed < self.awake and ids == self.asked:
            for request in requests:
                _note(self.resting, request, totals)
            self.proposed = self.clock()
            return [None] * len(requests)
        rooms = self._rooms(requests, ends, pool, spare)
        able = [request for request, room in zip(requests, rooms, strict=True) if room]
        paces = iter(self.pacer.pace(able, [room for room in rooms if room], self.costs) if able else ())
        chosen = [next(paces) if room else Pace(0, "no room for more tokens") for room in rooms]
        if any(pace.num_tokens and not pace.is_try for pace in chosen):
            self.drafted = self.num_proposed
        for reader in self.readers.values():
            reader.in_use = self.num_proposed - self.drafted < PAUSE
        asks = [
            Ask(request, pace.num_tokens) for request, pace in zip(requests, chosen, strict=True) if pace.num_tokens
        ]
        began = self.clock()
        proposed = iter(self._ask(asks, totals) if asks else ())
        drafts = [next(proposed) if pace.num_tokens else None for pace in chosen]
        for request, pace, draft in zip(requests, chosen, drafts, strict=True):
            if draft is None:
                _note(pace.reason or "nothing to propose", request, totals)
        self._rest(
            "" if asks else next((pace.reason for pace, room in zip(chosen, rooms, strict=True) if room), ""), ids
        )
        self.proposed = self.clock()
        if any(pace.is_try for pace in chosen):
            rows = np.array([len(requests), len(requests) + sum(draft is not None for draft in drafts)], np.int32)
            plain, more = self.costs.verify(rows)
            self.costs.tried(self.proposed - began + max(0.0, more - plain))
        return drafts

    def _rest(self, reason: str, ids: list[str]) -> None:
        """Until when nothing is asked, given the reason not to draft: twice as long for the same requests."""
        again = self.resting == reason and ids == self.asked
        self.rest = min(2 * self.rest, LONG_REST) if again else REST
        self.resting, self.asked, self.awake = reason, ids, self.num_proposed + self.rest

    def _rooms(self, requests: Sequence[Request], ends: Sequence[int], pool: KvPool, spare: int) -> list[int]:
        """Tokens that each request may draft, the earlier ones taking of the spare pages first."""
        rooms: list[int] = []
        for request, end in zip(requests, ends, strict=True):
            total, held = len(request.tokens), pool.pages_for(len(request.tokens))
            fit = (held + spare) * pool.page_size - total
            rooms.append(max(0, min(self.drafter.max_drafted, end - total - 1, fit)))
            spare -= pool.pages_for(total + rooms[-1]) - held
        return rooms

    def _ask(self, asks: Sequence[Ask], totals: DraftMetrics) -> list[Draft | None]:
        began, before = self.clock(), self._num_bytes()
        drafts = self.drafter.propose(asks, self.tools)
        seconds, num_bytes = self.clock() - began, self._num_bytes() - before
        totals.seconds += seconds
        totals.num_bytes += num_bytes
        for ask in asks:
            metrics_of(ask.request).seconds += seconds
            metrics_of(ask.request).num_bytes += num_bytes / len(asks)
        made = [(ask, draft) for ask, draft in zip(asks, drafts, strict=True) if draft is not None]
        last = [ask.request.state.get(STATE) for ask in asks]
        if made and all(step == self.num_proposed - 1 for step in last):  # else what was missed is read first
            self.costs.drafted(max(len(draft.tokens) for _, draft in made), seconds)
        for ask, _ in made:
            ask.request.state[STATE] = self.num_proposed
        return drafts

    def observe(self, plan: StepPlan, verdicts: Sequence[Verdict | None], out: ForwardOutput) -> None:
        """Notes what a forward took and brought, and what became of its drafts, before they are dropped."""
        row = 0
        for (request, n), verdict in zip(plan.items, verdicts, strict=True):
            kept = n
            if verdict is not None and request.draft is not None:
                self.costs.accepted(request, verdict.path, len(request.draft.tokens))
                kept += num_straight(verdict.path) - len(request.draft.tokens)
            if out.hidden is not None:
                for reader in self.readers.values():
                    reader.feed(request, request.cursors[TARGET].num_read, out.hidden[row : row + kept])
            row += n
        if all(request.cursors[TARGET].num_read >= request.num_prompt - 1 for request, _ in plan.items):
            self.costs.verified(plan.num_tokens, self.clock() - self.proposed)

    def _num_bytes(self) -> int:
        return sum(reader.num_bytes for reader in self.readers.values())


def _note(reason: str, request: Request, totals: DraftMetrics) -> None:
    """Why a step of the request had no draft."""
    for metrics in (totals, metrics_of(request)):
        metrics.reasons[reason] = metrics.reasons.get(reason, 0) + 1


def metrics_of(request: Request) -> DraftMetrics:
    """The figures of a request's speculation."""
    return request.state["metrics"].drafts

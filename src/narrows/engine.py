"""The step loop: draft, plan, place, build, forward, verify, commit.

Parts decide; the engine alone changes requests and the pool. It knows bases and no concrete part, and has no modes:
every request is a cursor that catches up with its tokens. Keep it readable in one sitting.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from .batch import build, num_logits, num_straight
from .constrain.base import Grammars, Matcher
from .drafters.base import Tools
from .kv.pool import KvPool, OutOfPages
from .ledger import DraftMetrics, Ledger, RequestMetrics
from .prompts import ContextLengthError, RequestError, check_prompt
from .reader import Model, Reader
from .readout import Pooled, is_pooled, pool_final, prompt_logprobs
from .sampling import CounterRng, ParamError, SamplingParams, adjust_paths, adjusts, fresh_seed, token_logprobs
from .schedulers.base import Scheduler, num_behind, num_drafted, prefix_limit
from .speculation import Speculation
from .types import F32, TARGET, ForwardOutput, Request, Status, StepPlan, TokenLogprobs, Verdict
from .verifiers.base import Verifier

__all__ = ["ContextLengthError", "Engine", "RequestError", "StepResult"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought one request: new tokens, and why it ended if it did."""

    request: Request
    tokens: list[int]
    finish_reason: str | None = None  # "stop" | "length"
    logprobs: list[TokenLogprobs] | None = None  # of `tokens`
    prompt_logprobs: list[TokenLogprobs] | None = None  # of the next prompt tokens, the first prompt token having none
    num_accepted: int = 0  # guesses that were right: the first of `tokens`, which an end may have cut short


class Engine:
    """One model and the requests it serves. Not thread-safe: one caller steps it."""

    def __init__(
        self,
        model: Model,
        pool: KvPool,
        scheduler: Scheduler,
        verifier: Verifier,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_ids: frozenset[int] = frozenset(),
        bos_id: int | None = None,
        speculation: Speculation | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        if pool.pages_for(max_model_len) > pool.num_pages:
            raise ValueError(
                f"max_model_len is {max_model_len} tokens but the KV cache holds {pool.num_pages * pool.page_size}: "
                "lower the one or raise the other"
            )
        self.model, self.pool, self.scheduler, self.verifier = model, pool, scheduler, verifier
        self.speculation = speculation
        self.target = Reader(TARGET, model, pool)
        self.readers = [self.target, *(speculation.readers.values() if speculation else ())]
        if speculation:
            speculation.tools = Tools(speculation.readers, verifier.wants_probs, eos_ids, vocab_size)
        self.vocab_size, self.max_model_len = vocab_size, max_model_len
        self.eos_ids, self.bos_id, self.grammars = eos_ids, bos_id, grammars
        self.requests: dict[str, Request] = {}  # those not finished, by id
        self.waiting: list[Request] = []  # in order of arrival, after those that were preempted
        self.running: list[Request] = []  # in the order in which they began
        self.ledger, self._ids = Ledger(), count()

    def add(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        id: str | None = None,
        seed: int | None = None,
        salt: str = "",
        owner: str = "",
        priority: int = 0,
        embed: bool = False,
    ) -> Request:
        """Queues one sequence; `seed` overrides that of params, `salt` keeps its cached prefix to itself.

        Owners share fairly; among the requests of one, lower `priority` is earlier. `embed` wants `pooled`, no answer.
        Raises RequestError (ContextLengthError when the prompt does not fit) or ParamError.
        """
        tokens = check_prompt(prompt, self.vocab_size, self.max_model_len, self.bos_id)
        params.check_vocabulary(self.vocab_size)
        id = f"request-{next(self._ids)}" if id is None else id
        if id in self.requests:
            raise RequestError(f"there is already a request {id!r}")
        seed = seed if seed is not None else fresh_seed() if params.seed is None else params.seed
        request = Request(id, tokens, len(tokens), params, seed, time.monotonic(), salt, owner, priority)
        request.pooled = Pooled() if embed else None
        if params.structured_outputs:
            if self.grammars is None:
                raise ParamError("structured_outputs", "cannot be used: this engine was built without grammars")
            request.state["matcher"] = self.grammars.matcher(params.structured_outputs)
        drafts = DraftMetrics() if self.speculation else None
        request.state["metrics"] = RequestMetrics(request.arrival, request.num_prompt, drafts=drafts)
        self.requests[id] = request
        self.waiting.append(request)
        return request

    def abort(self, id: str, reason: str = "abort") -> bool:
        """Ends a request now and frees its pages; false when there is none of that id."""
        request = self.requests.get(id)
        if request is not None:
            self._finish(request, reason)
        return request is not None

    def step(self) -> list[StepResult]:
        """Advances what the scheduler chose. When the model raises, so does this, after aborting its requests."""
        if not self.requests:
            return []
        began = time.perf_counter()
        if self.speculation:
            self._draft(self.speculation)
        plan = self.scheduler.plan(self.waiting, self.running, self.pool)
        if not plan.items and not plan.preempted:
            raise RuntimeError("the scheduler left every request where it is")
        self._place(plan)
        if not plan.items:
            return []
        try:
            out = self.model.forward(build(plan.items))
            verified = self._verify(plan, out.logits)
        except BaseException:
            for request, _ in plan.items:
                self._finish(request, "abort")
            raise
        results = self._commit(plan, out, verified)
        self.ledger.step_seconds += time.perf_counter() - began
        return results

    def _draft(self, speculation: Speculation) -> None:
        """Drafts for the requests that are about to choose a token; others' need of pages goes first."""
        ready = [r for r in self.running if num_behind(r) <= speculation.drafter.max_drafted and not r.pooled]
        needed = sum(self.pool.pages_for(len(r.tokens)) - len(r.cursors[TARGET].pages) for r in self.running)
        spare = 0 if self.waiting else max(0, self.pool.num_free - needed)
        try:
            drafts = speculation.propose(ready, [self._limit(r) for r in ready], self.pool, spare, self.ledger.drafts)
            for request, draft in zip(ready, drafts, strict=True):
                request.draft = draft
        except BaseException:
            for request in ready:
                self._finish(request, "abort")
            raise

    def _place(self, plan: StepPlan) -> None:
        """Gives every request of the plan the pages it is about to write, and those it can share."""
        for request in plan.preempted:  # latest first, so the earliest ends up in front
            self._release(request)
            request.status = Status.WAITING
            request.num_preemptions += 1
            self.ledger.num_preemptions += 1
            self.running.remove(request)
            self.waiting.insert(0, request)
        for request, _ in plan.items:  # shared before anything is written: writing may evict what was found
            if request.status is Status.WAITING:
                cursor = self.target.start(request, prefix_limit(request))
                if not request.num_preemptions:
                    request.num_cached = cursor.num_read
                    self.ledger.num_cached += request.num_cached
                request.status = Status.RUNNING
                self.waiting.remove(request)
                self.running.append(request)
        planned = {id(request): n for request, n in plan.items}
        for request in self.running:  # a draft is tested in the step it was made for, as far as the plan has room
            if request.draft is not None:
                own = len(request.tokens) - request.cursors[TARGET].num_read
                request.draft = request.draft.first(planned.get(id(request), 0) - own)
                if request.draft is None:
                    self._settle(request, len(request.tokens) - 1)
        for request, n in plan.items:
            if not self.target.reserve(request, request.cursors[TARGET].num_read + n):
                raise OutOfPages("the plan needs more pages than the KV cache has")

    def _verify(self, plan: StepPlan, logits: F32) -> list[tuple[Verdict | None, list[TokenLogprobs] | None]]:
        """logits [R, V] -> by item: a verdict if it caught up, log-probabilities of the prompt if it wants them."""
        verified: list[tuple[Verdict | None, list[TokenLogprobs] | None]] = []
        row = 0
        for request, n in plan.items:
            rows = logits[row : row + num_logits(request, n)]
            row += len(rows)
            behind = len(request.tokens) - request.cursors[TARGET].num_read - n + num_drafted(request)
            verdict = None if behind or request.pooled else self._verdict(request, rows)
            verified.append((verdict, prompt_logprobs(request, n, rows)))
        return verified

    def _verdict(self, request: Request, rows: F32) -> Verdict:
        params, draft = request.params, request.draft
        raw = adjusted = rows[-1 - num_drafted(request) :]
        paths: list[list[int]] = [[], *(draft.paths() if draft else ())]
        if adjusts(params, len(request.tokens) - request.num_prompt):
            adjusted = adjust_paths(raw, request.tokens, paths, request.num_prompt, params, self._end_ids(request))
        matcher: Matcher | None = request.state.get("matcher")
        if matcher:
            adjusted = matcher.mask(adjusted, paths)
        verdict = self.verifier.verify(adjusted, draft, params, CounterRng(request.seed, len(request.tokens)))
        if params.logprobs is not None:
            chosen = raw[[0, *(node + 1 for node in verdict.path)]]
            verdict = replace(verdict, logprobs=token_logprobs(chosen, verdict.tokens, params.logprobs))
        return verdict

    def _commit(
        self,
        plan: StepPlan,
        out: ForwardOutput,
        verified: Sequence[tuple[Verdict | None, list[TokenLogprobs] | None]],
    ) -> list[StepResult]:
        now = time.monotonic()
        self.ledger.record(plan, out)
        if self.speculation:
            self.speculation.observe(plan, [verdict for verdict, _ in verified], out)
        results = []
        pool_final(plan.items, out.final)
        for (request, n), (verdict, prompt) in zip(plan.items, verified, strict=True):
            request.cursors[TARGET].num_read += n
            if prompt:
                request.state["prompt_logprobs"] = request.state.get("prompt_logprobs", 0) + len(prompt)
            path = verdict.path if verdict else []
            straight, ended = len(request.tokens) + num_straight(path), "stop" if is_pooled(request) else None
            tokens, reason = self._accept(request, verdict, now) if verdict else ([], ended)
            self._settle(request, min(straight, len(request.tokens) - 1))
            if reason:
                self._finish(request, reason)
            if tokens or prompt or reason:
                logprobs = verdict.logprobs[: len(tokens)] if verdict and verdict.logprobs else None
                results.append(StepResult(request, tokens, reason, logprobs, prompt, len(path)))
        return results

    def _accept(self, request: Request, verdict: Verdict, now: float) -> tuple[list[int], str | None]:
        """Appends the verdict's tokens up to the first that ends the request, and drops what was drafted in vain."""
        params, end_ids, limit = request.params, self._end_ids(request), self._limit(request)
        matcher: Matcher | None = request.state.get("matcher")
        tokens: list[int] = []
        reason = None
        for token in verdict.tokens:
            tokens.append(token)
            total = len(request.tokens) + len(tokens)
            reason = matcher.accept(token) if matcher else None
            if reason is None and token in end_ids and total - request.num_prompt > params.min_tokens:
                reason = "stop"
            elif reason is None and total >= limit:
                reason = "length"
            if reason:
                break
        request.tokens += tokens
        metrics: RequestMetrics = request.state["metrics"]
        for drafts in (self.ledger.drafts, metrics.drafts):
            if drafts is not None:
                drafts.observe(request.draft, len(verdict.path), len(tokens))
        request.draft = None
        metrics.num_output += len(tokens)
        metrics.first_token = now if metrics.first_token is None else metrics.first_token
        metrics.last_token = now
        self.ledger.num_output += len(tokens)
        return tokens, reason

    def _finish(self, request: Request, reason: str) -> None:
        self._release(request)
        (self.running if request.status is Status.RUNNING else self.waiting).remove(request)
        request.status, request.finish_reason = Status.FINISHED, reason
        metrics: RequestMetrics = request.state["metrics"]
        metrics.num_cached, metrics.num_preemptions = request.num_cached, request.num_preemptions
        del self.requests[request.id]

    def _limit(self, request: Request) -> int:
        """The number of tokens at which it ends."""
        most = request.params.max_tokens
        return self.max_model_len if most is None else min(self.max_model_len, request.num_prompt + most)

    def _settle(self, request: Request, length: int) -> None:
        for reader in self.readers:
            reader.settle(request, length)

    def _release(self, request: Request) -> None:
        request.draft = None
        for reader in self.readers:
            reader.release(request)

    def _end_ids(self, request: Request) -> frozenset[int]:
        own = request.params.stop_token_ids
        return self.eos_ids.union(own) if not request.params.ignore_eos else frozenset(own)

    def check(self) -> None:
        """Raises AssertionError unless every page is accounted for."""
        for reader in self.readers:
            reader.pool.check([reader.cursor(request) for request in self.requests.values()])

"""The gateway's side of a subserver: its process, the work it was given, and what becomes of both when it dies."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from ..ledger import Ledger, added
from . import wire
from .call import Call, Job
from .errors import ApiError, unavailable
from .metrics import ModelMetrics

log = logging.getLogger("narrows.serve")

PING_SECONDS = 1.0
MAX_ATTEMPTS = 3  # processes that may die under a prompt that none of them is known to have begun
BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.2, 10.0
STABLE_SECONDS = 10.0  # a process that lived this long starts the back-off anew
LEAVE_SECONDS = 5.0
_STATUS = {"refused": 400, "deadline": 504, "error": 500}


class Backend:
    """One model's subserver, kept alive: a process that dies is replaced after a pause that grows.

    `state` is "loading" until the first process is ready, then "ready" or "restarting"; "failed" when the last one died
    before it was ready, which fails new requests at once, though another is tried. One that shows for `stall_timeout`
    seconds no sign of going on is killed. `on_fatal` is told when the very first process cannot load the model.
    """

    def __init__(
        self,
        name: str,
        options: wire.Options,
        metrics: ModelMetrics,
        *,
        max_queued: int,
        stall_timeout: float,
        on_fatal: Callable[[str], Any],
    ) -> None:
        self.name, self.options, self.metrics = name, options, metrics
        self.max_queued = max_queued
        self.state = "loading"
        self.limits: wire.Ready | None = None  # of the latest process that was ready
        self.report: wire.Report | None = None
        self.past = Ledger()  # totals of processes that ended
        self.num_restarts = 0
        self.progress = time.monotonic()
        self.jobs: dict[str, Job] = {}
        self._on_fatal, self._stall_timeout = on_fatal, stall_timeout
        self._socket: zmq.asyncio.Socket | None = None
        self._closing = False
        self._failure = ""  # why the process says it cannot load

    # --- figures ---

    @property
    def num_running(self) -> int:
        """Answers being worked on."""
        return self.report.num_running if self.report else 0

    @property
    def num_waiting(self) -> int:
        """Answers that wait for their first step."""
        return max(0, sum(job.num_open for job in self.jobs.values()) - self.num_running)

    @property
    def totals(self) -> Ledger:
        """Of all its processes."""
        return added(self.past, self.report.ledger) if self.report else self.past

    # --- for requests ---

    def submit(self, submits: Sequence[wire.Submit]) -> Call:
        """Takes all prompts of a request or, raising ApiError, none."""
        if self.state in ("loading", "failed") or self._closing or self.limits is None:
            why = {"loading": "is loading", "failed": "could not be restarted"}.get(self.state, "is shutting down")
            raise unavailable(f"the model {self.name} {why}; try again later", 5)
        num_new = sum(s.params.n for s in submits)
        under_way = sum(job.num_open for job in self.jobs.values())
        if under_way + num_new > self.limits.max_num_seqs + self.max_queued:
            self.metrics.refused()
            raise ApiError(
                429,
                f"{under_way} answers are under way and the queue holds {self.max_queued}; try again later",
                code="queue_full",
                headers={"Retry-After": "1"},
            )
        call, now = Call(self, submits[0].deadline), time.monotonic()
        for position, submit in enumerate(submits):
            job = Job(submit, position, call, submit.params.n, now)
            call.jobs.append(job)
            self.jobs[submit.id] = job
            if self.state == "ready":
                self._hand_over(job)
        return call

    def cancel(self, job: Job) -> None:
        """Ends a job now; one that has ended already is left alone."""
        if self.jobs.pop(job.submit.id, None):
            self._send(wire.Cancel(job.submit.id))
            self.metrics.ended(job, "abort", job.num_open)

    def fail_all(self, error: ApiError) -> None:
        """Ends everything that is under way, and takes no more."""
        self._closing = True
        for job in list(self.jobs.values()):
            self.cancel(job)
            job.call.tell(error)

    def stalled(self, seconds: float) -> bool:
        """Whether a process that is ready has not shown for so long that it goes on."""
        return self.state == "ready" and time.monotonic() - self.progress > seconds

    def _hand_over(self, job: Job) -> None:
        job.attempts += 1
        self._send(job.submit)

    def _send(self, command: wire.Command) -> None:
        if self._socket is not None:
            self._socket.send(wire.encode(command))  # never blocks: there is no limit on what it holds

    # --- the life of the process ---

    async def run(self, context: zmq.asyncio.Context, folder: Path) -> None:
        """Keeps a process running until cancelled, then makes it leave. Sockets go into `folder`."""
        failures = 0
        try:
            while True:
                began = time.monotonic()
                try:
                    status = await self._live(context, folder / f"{os.urandom(8).hex()}.ipc")
                    why = self._failure or f"its process ended with status {status}"
                except (OSError, zmq.ZMQError, msgspec.MsgspecError) as error:
                    why = f"its process could not be started or understood: {error}"
                if self.state == "loading":
                    self._on_fatal(f"cannot serve {self.name}: {why}")
                    return
                failures = 0 if time.monotonic() - began > STABLE_SECONDS else failures + 1
                delay = min(BACKOFF_SECONDS * 2**failures, MAX_BACKOFF_SECONDS)
                log.error("%s: %s; the next starts in %.1f s", self.name, why, delay)
                self._mourn()
                await asyncio.sleep(delay)
                self.num_restarts += 1
        except Exception as error:  # without a process and without a word the model would be gone
            log.exception("%s is given up", self.name)
            self._on_fatal(f"cannot go on serving {self.name}: {error!r}")
        finally:
            self._closing = True

    async def _live(self, context: zmq.asyncio.Context, path: Path) -> int:
        """One process, from its start to its end; returns its exit status."""
        self._failure = ""
        options = msgspec.structs.replace(self.options, address=f"ipc://{path}")
        with context.socket(zmq.DEALER) as socket:
            socket.set_hwm(0)
            socket.linger = 0
            socket.bind(options.address)
            # Without the working directory on its path; numpy's threads would spin where the engine's work.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "narrows.serve.subserver"),
                stdin=asyncio.subprocess.PIPE,
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
            )
            self._socket = socket
            works = process.wait(), self._receive(socket), self._watch(process)
            tasks = [asyncio.create_task(work) for work in works]
            try:
                assert process.stdin is not None
                process.stdin.write(msgspec.json.encode(options) + b"\n")
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # raises what was wrong with a message
                tasks[1].cancel()
                while await socket.poll(0):  # what it said before it ended
                    self._handle(wire.decode_message(await socket.recv()))
                return await process.wait()
            finally:
                self._socket = None
                for task in tasks:
                    task.cancel()
                await _leave(process)
                path.unlink(missing_ok=True)

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            self._handle(wire.decode_message(await socket.recv()))
            await asyncio.sleep(0)  # others' turn, though more may wait here

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Asks an idle process for a word now and then, and kills one that has stalled, which ends it as any death."""
        num_stalled = 0
        while num_stalled < 2:  # one look may be the first after a sleep of the whole machine
            await asyncio.sleep(PING_SECONDS)
            num_stalled = num_stalled + 1 if self.stalled(self._stall_timeout) else 0
            if self.state == "ready" and not self.jobs:  # otherwise each step reports
                self._send(wire.Ping())
        log.error("%s: no step for %g s: its process is stopped", self.name, self._stall_timeout)
        process.kill()

    def _mourn(self) -> None:
        """A process died: fails what it had begun, keeps what is only queued."""
        was_ready = self.state == "ready"
        self.state = "restarting" if was_ready else "failed"
        if self.report is not None:
            self.past = added(self.past, self.report.ledger)
            self.report = None
        for job in list(self.jobs.values()):
            if job.started is not None or job.attempts >= MAX_ATTEMPTS or not was_ready:
                self._fail(job, unavailable(f"the process of the model {self.name} ended; try again"))

    def _fail(self, job: Job, error: ApiError) -> None:
        del self.jobs[job.submit.id]
        self.metrics.ended(job, "error", job.num_open)
        job.call.tell(error)

    # --- what it says ---

    def _handle(self, message: wire.Message) -> None:
        now = time.monotonic()
        if isinstance(message, wire.Ready):
            self.limits, self.state, self.progress = message, "ready", now
            log.info("%s is ready: %d tokens of context, %s", self.name, message.max_model_len, message.stack)
            for job in self.jobs.values():
                self._hand_over(job)
        elif isinstance(message, wire.Failed):
            self._failure = message.message
        else:
            if self.report is None or message.ledger.num_steps != self.report.ledger.num_steps or not self.jobs:
                self.progress = now
            self.report = message
            for id in message.started:
                if job := self.jobs.get(id):
                    self._start(job, now)
            for delta in message.deltas:
                if job := self.jobs.get(delta.id):
                    self._advance(job, delta, now)
            for ended in message.ended:
                if job := self.jobs.get(ended.id):
                    self._fail(job, ApiError(_STATUS[ended.code], ended.message, code=ended.code))

    def _start(self, job: Job, now: float) -> None:
        if job.started is None:
            job.started = now
            self.metrics.started(job)

    def _advance(self, job: Job, delta: wire.Delta, now: float) -> None:
        self._start(job, now)
        self.metrics.advanced(job, delta, now)
        job.first_token = now if job.first_token is None else job.first_token
        job.last_token[delta.index] = now
        if delta.finish_reason is not None:
            self.metrics.ended(job, delta.finish_reason, 1)
            job.num_open -= 1
            if not job.num_open:
                del self.jobs[job.submit.id]
        job.call.tell((job.position, delta))


async def _leave(process: asyncio.subprocess.Process) -> None:
    """Closes a process's stdin, which tells it to leave, and ends it when it does not."""
    if process.returncode is None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), LEAVE_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()

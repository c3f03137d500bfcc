"""The process of one model: it owns the engine, takes commands between steps, and sleeps when nothing is to be done."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable

import msgspec
import zmq

from ..constrain.guidance import Guidance
from ..loader import Loaded, load
from ..outputs import Completion
from ..sampling import child_seed
from . import wire

log = logging.getLogger("narrows.subserver")


class Job:
    """One prompt and its growing answers."""

    def __init__(self, submit: wire.Submit, loaded: Loaded) -> None:
        self.id, self.deadline, self.started = submit.id, submit.deadline, False
        self.growing: dict[str, Completion] = {}  # by id of the engine's request
        for i in range(submit.params.n):
            seed = child_seed(submit.seed, i)
            request = loaded.engine.add(
                submit.prompt,
                submit.params,
                id=f"{submit.id}/{i}",
                seed=seed,
                salt=submit.salt,
                owner=submit.owner,
                priority=submit.priority,
                embed=submit.embed,
            )
            self.growing[request.id] = Completion(request, loaded.tokenizer, i)


class Subserver:
    """Steps one engine for jobs that arrive as commands; `send` takes what is to be reported.

    Works in turns: `handle` any number of commands, then `step`.
    """

    def __init__(self, loaded: Loaded, send: Callable[[wire.Report], object]) -> None:
        self.loaded, self.engine, self._send = loaded, loaded.engine, send
        self.jobs: dict[str, Job] = {}
        self._ended: list[wire.Ended] = []

    @property
    def idle(self) -> bool:
        return not self.jobs and not self._ended

    def handle(self, command: wire.Command) -> None:
        """Takes one command."""
        if isinstance(command, wire.Submit):
            self._add(command)
        elif isinstance(command, wire.Cancel):
            self._drop(command.id)
        else:
            self._report([], [])

    def step(self) -> None:
        """Drops jobs whose time is over, advances the engine, and reports."""
        now = time.monotonic()
        for job in list(self.jobs.values()):
            if job.deadline is not None and now >= job.deadline:
                self._end(job.id, "deadline", "the request's deadline has passed")
        deltas: list[wire.Delta] = []
        try:
            results = self.engine.step()
        except Exception as error:  # the engine has dropped the requests of the step, and can go on with the others
            log.exception("a step failed")
            alive = self.engine.requests.keys()
            lost = [job for job in self.jobs.values() if not job.growing.keys() <= alive] or list(self.jobs.values())
            for job in lost:
                self._end(job.id, "error", f"the engine failed: {type(error).__name__}")
            results = []
        for result in results:
            job = self.jobs[result.request.id.rpartition("/")[0]]
            completion = job.growing[result.request.id]
            num_before = len(completion.output.token_ids)
            text = completion.push(result)
            if completion.finished:
                self.engine.abort(result.request.id, "stop")
                del job.growing[result.request.id]
            if result.tokens or completion.finished:
                deltas.append(_delta(job.id, completion, text, num_before))
        self._report(self._newly_started(), deltas)
        for id in {delta.id for delta in deltas if delta.finish_reason}:
            if not self.jobs[id].growing:
                del self.jobs[id]

    def _add(self, submit: wire.Submit) -> None:
        try:
            self.jobs[submit.id] = Job(submit, self.loaded)
        except ValueError as error:  # the gateway checks too: only if the two disagree
            for i in range(submit.params.n):
                self.engine.abort(f"{submit.id}/{i}")
            self._ended.append(wire.Ended(submit.id, "refused", str(error)))

    def _drop(self, id: str) -> bool:
        job = self.jobs.pop(id, None)
        for request_id in job.growing if job else ():
            self.engine.abort(request_id)
        return job is not None

    def _end(self, id: str, code: str, message: str) -> None:
        self._drop(id)
        self._ended.append(wire.Ended(id, code, message))

    def _newly_started(self) -> list[str]:
        waiting = {request.id for request in self.engine.waiting}
        started = [job for job in self.jobs.values() if not job.started and not job.growing.keys() <= waiting]
        for job in started:
            job.started = True
        return [job.id for job in started]

    def _report(self, started: list[str], deltas: list[wire.Delta]) -> None:
        engine = self.engine
        ended, self._ended = self._ended, []
        self._send(
            wire.Report(
                num_running=len(engine.running),
                num_waiting=len(engine.waiting),
                num_free_pages=engine.pool.num_free,
                ledger=engine.ledger,
                started=started,
                deltas=deltas,
                ended=ended,
            )
        )


def _delta(id: str, completion: Completion, text: str, num_before: int) -> wire.Delta:
    """What was pushed since the answer had `num_before` tokens."""
    output = completion.output
    return wire.Delta(
        id=id,
        index=output.index,
        text=text,
        token_ids=output.token_ids[num_before:],
        logprobs=None if output.logprobs is None else output.logprobs[num_before:],
        prompt_logprobs=completion.prompt_logprobs if num_before == 0 else None,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        num_cached=completion.request.num_cached,
        ledger=output.metrics.json() if output.finish_reason else None,
        embedding=None if output.embedding is None else output.embedding.astype("<f4").tobytes(),
        num_drafted=completion.drafted[0],
        num_drafted_chars=completion.drafted[1],
    )


def main() -> None:
    """Runs a subserver until its stdin closes."""
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=wire.Options)
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group: the gateway decides when to leave
        signal.signal(number, signal.SIG_IGN)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format=f"%(levelname)s: %(name)s[{os.getpid()}]: %(message)s")
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set_hwm(0)
        socket.linger = 1000  # milliseconds to bring out the last words
        socket.connect(options.address)
        try:
            loaded = _load(options)
            loaded.engine.grammars = Guidance(loaded.tokenizer, loaded.spec.vocab_size, tried=True)
        except (ValueError, OSError, MemoryError) as error:
            socket.send(wire.encode(wire.Failed(str(error) or type(error).__name__)))
            return
        socket.send(wire.encode(_ready(loaded)))
        _serve(Subserver(loaded, lambda report: socket.send(wire.encode(report))), socket)


def _serve(subserver: Subserver, socket: zmq.Socket) -> None:
    stdin = 0
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(stdin, zmq.POLLIN)
    while True:
        ready = dict(poller.poll(None if subserver.idle else 0))
        if stdin in ready:  # nothing more is ever written there: it was closed
            return
        while socket.poll(0):
            subserver.handle(wire.decode_command(socket.recv()))
        if not subserver.idle:
            subserver.step()


def _load(options: wire.Options) -> Loaded:
    return load(
        options.model,
        options.stack,
        weights=options.weights,
        num_threads=options.num_threads,
        max_model_len=options.max_model_len,
        kv_cache_bytes=options.kv_cache_bytes,
        progress=False,
    )


def _ready(loaded: Loaded) -> wire.Ready:
    engine = loaded.engine
    return wire.Ready(
        max_model_len=engine.max_model_len,
        vocab_size=engine.vocab_size,
        hidden_size=loaded.spec.hidden_size,
        max_num_seqs=getattr(loaded.stack.scheduler, "max_num_seqs", 1),
        num_pages=engine.pool.num_pages,
        page_size=engine.pool.page_size,
        num_threads=loaded.model.num_threads,
        stack=str(loaded.stack),
        lossless=loaded.stack.lossless,
    )


if __name__ == "__main__":
    main()

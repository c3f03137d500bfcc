"""How far long work is, on stderr: a bar in a terminal; elsewhere, as in a log, a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from .machine import alone_in

EVERY = 60.0  # seconds between lines
INTERRUPTED = 130


class Advance(Protocol):
    """Called with how much more is done."""

    def __call__(self, done: int = 1, /) -> None: ...


@contextmanager
def resumable(work: Path) -> Iterator[None]:
    """Work that is kept there, one command's at a time: who stops it, by Ctrl-C or SIGTERM, is told how to go on.

    Raises BlockingIOError while another command is at it.
    """
    if not work.exists():
        work.mkdir(parents=True)
    try:
        with alone_in(work):
            yield
    except (KeyboardInterrupt, SystemExit) as stop:
        print(f"\nstopped; the same command goes on from {work}", file=sys.stderr, flush=True)
        raise SystemExit(stop.code if isinstance(stop, SystemExit) else INTERRUPTED) from None


@contextmanager
def bar(label: str, total: int, *, still: bool = False) -> Iterator[Advance]:
    """A bar with the time left. One that is `still` is drawn when it moves only, to disturb nothing that is timed."""
    if not sys.stderr.isatty():
        yield _Lines(label, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=not still) as progress:
        task = progress.add_task(label, total=total)
        progress.refresh()
        yield lambda done=1, /: progress.update(task, advance=done, refresh=still)


class _Lines:
    def __init__(self, label: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._label, self._total, self._clock = label, total, clock
        self._done, self._begin = 0, clock()
        self._shown = self._begin

    def __call__(self, done: int = 1, /) -> None:
        self._done += done
        now = self._clock()
        if now - self._shown < EVERY:
            return
        self._shown, spent = now, now - self._begin
        share = self._done / max(self._total, 1)
        left = f", about {_minutes(spent / share - spent)} left" if share else ""
        counts = f"{self._done:,} of {self._total:,} ({share:.0%})"
        print(f"{self._label}: {counts} after {_minutes(spent)}{left}", file=sys.stderr, flush=True)


def _minutes(seconds: float) -> str:
    minutes = round(max(seconds, 0) / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"

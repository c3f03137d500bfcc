"""Runs a Python program that nobody has read: in a process of its own that cannot write outside its folder, use the
network, make processes, or go on beyond its limits. `jail.py` holds the locks."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from .base import DataError

JAIL = Path(__file__).with_name("jail.py")
MAX_STDERR = 4096  # characters kept, from the end
TICK = 0.1  # seconds between looks at the folder

PROBE = """
import os, socket
def attempt(what, act):
    try:
        act()
    except OSError:
        return
    raise SystemExit("the program could " + what)
attempt("write outside its folder", lambda: open({outside!r}, "r+"))
attempt("open a socket", lambda: socket.socket())
attempt("make a process", lambda: os.fork() or os._exit(0))
open("inside", "w").write("x")
"""


class SandboxError(DataError):
    """Programs cannot be run safely here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program. `reason` is "passed", or why not: "timeout", "disk", or the last line it wrote."""

    passed: bool
    reason: str
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Limits of a program. Without `protect` only these, its own folder and a clean environment keep it in.

    A program passes when it reaches its end and exits with 0: leaving early is no pass.
    """

    protect: bool = True
    seconds: int = 5  # of CPU time
    wall: float = 15.0  # seconds by the clock
    memory: int = 1 << 30  # bytes of address space
    file_size: int = 16 << 20  # bytes of a file
    disk: int = 64 << 20  # bytes of all of them, looked at ten times a second
    _checked: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)

    def run(self, program: str) -> Outcome:
        """Runs `program` to its end or its limit. Raises SandboxError when this machine cannot hold it."""
        self.check()
        return self._run(program)

    def check(self) -> None:
        """Tries, the first time, what a program must not be able to do. Raises SandboxError."""
        if self._checked:
            return
        if sys.platform != "linux":
            raise SandboxError(f"running a model's programs needs Linux, not {sys.platform}")
        if self.protect:
            self._probe()
        self._checked.append(True)

    def _probe(self) -> None:
        handle, outside = tempfile.mkstemp(prefix="narrows-outside-")
        os.fchmod(handle, 0o666)  # so that nothing but the sandbox forbids it
        os.close(handle)
        try:
            outcome = self._run(PROBE.format(outside=outside))
        finally:
            os.unlink(outside)
        if not outcome.passed:
            raise SandboxError(f"the sandbox does not hold on this machine: {outcome.reason}; {OVERRIDE}")

    def _run(self, program: str) -> Outcome:
        nonce = secrets.token_hex(16).encode()
        folder = tempfile.mkdtemp(prefix="narrows-run-")
        read, write = os.pipe()
        try:
            if self.protect and os.geteuid() == 0:
                os.chown(folder, 65534, 65534)
            with tempfile.TemporaryFile() as source:
                text = f"{program}\n\n__import__('os').write({write}, {nonce!r})\n"
                source.write(text.encode("utf-8", "replace"))
                source.seek(0)
                process = self._start(source.fileno(), folder, write)
            os.close(write)
            write = -1
            reason, stderr = self._watch(process, folder)
            said = os.read(read, 1 + len(nonce) + 1)
        finally:
            os.close(read)
            if write >= 0:
                os.close(write)
            _remove(folder)
        if not reason and not said.startswith(b"R"):
            raise SandboxError(f"the sandbox cannot be set up: {stderr.strip()}; {OVERRIDE}")
        if not reason and (process.returncode or said != b"R" + nonce):
            reason = _why(process.returncode, stderr)
        return Outcome(not reason, reason or "passed", stderr)

    def _start(self, source: int, folder: str, done: int) -> subprocess.Popen[bytes]:
        config = {
            "folder": folder,
            "done": done,
            "parent": os.getpid(),
            "protect": self.protect,
            "seconds": self.seconds,
            "memory": self.memory,
            "file_size": self.file_size,
        }
        env = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(JAIL), json.dumps(config)],
            stdin=source,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=env | {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"},
            pass_fds=(done,),
            start_new_session=True,
        )

    def _watch(self, process: subprocess.Popen[bytes], folder: str) -> tuple[str, str]:
        """Waits for the end and brings it about when a limit is passed: (the limit or "", tail of stderr)."""
        assert process.stderr is not None
        end, reason, tail = time.monotonic() + self.wall, "", b""
        try:
            with process.stderr, selectors.DefaultSelector() as selector:
                selector.register(process.stderr, selectors.EVENT_READ)
                looked = time.monotonic()
                while True:
                    if selector.select(TICK):
                        chunk = os.read(process.stderr.fileno(), 1 << 16)
                        tail = (tail + chunk)[-MAX_STDERR:]
                        if not chunk:
                            selector.unregister(process.stderr)
                            break
                    now = time.monotonic()
                    if now > end:
                        reason = "timeout"
                    elif now - looked > TICK:
                        looked = now
                        reason = "disk" if _size(folder, self.disk) > self.disk else ""
                    if reason or process.poll() is not None:
                        break
            while not reason and process.poll() is None:  # it may close stderr and stay
                time.sleep(0.005)
                reason = "timeout" if time.monotonic() > end else ""
        finally:
            _kill(process)
        return reason, tail.decode("utf-8", "replace")


OVERRIDE = "run them where it does, or, if you trust them, give the measure the setting sandbox=off"


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # its leader is not waited for yet, or it has no members left
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()


def _why(code: int, stderr: str) -> str:
    if code == -signal.SIGKILL or code == -signal.SIGXCPU:
        return "timeout"  # the hard limit of CPU time
    lines = stderr.strip().splitlines()
    if code < 0:
        return signal.Signals(-code).name
    return lines[-1][:200] if lines and code else f"exit {code} before its end"


def _size(folder: str, limit: int) -> int:
    """Bytes in a folder, counted until they pass `limit`; an entry counts for 4096 at least."""
    total = 0
    for here, folders, files in os.walk(folder):
        total += 4096 * len(folders)
        for name in files:
            try:
                total += max(4096, os.lstat(os.path.join(here, name)).st_blocks * 512)
            except OSError:
                continue
        if total > limit:
            break
    return total


def _remove(folder: str) -> None:
    for here, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(here, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)

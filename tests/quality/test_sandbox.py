"""Programs that try to get out."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from narrows.measure.quality import sandbox as module
from narrows.measure.quality.sandbox import Sandbox, SandboxError


def checked(box: Sandbox) -> Sandbox:
    try:
        box.check()
    except SandboxError as error:
        pytest.skip(str(error))
    return box


@pytest.fixture(scope="module")
def box() -> Sandbox:
    """For programs that come to an end by themselves, however slow the machine."""
    return checked(Sandbox(seconds=20, wall=60, disk=32 << 20))


@pytest.fixture(scope="module")
def hasty(box: Sandbox) -> Sandbox:
    return checked(replace(box, seconds=1, wall=1.5))


def test_a_program_passes_only_when_it_reaches_its_end(box: Sandbox) -> None:
    assert box.run("import math, json, re, itertools\nassert math.gcd(4, 6) == 2").passed
    wrong = box.run("assert 1 == 2, 'no'")
    assert (wrong.passed, wrong.reason) == (False, "AssertionError: no")
    assert "Traceback" in wrong.stderr
    for early in ("import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit"):
        assert not box.run(early).passed
    assert not box.run("def f(:").passed
    assert not box.run("import os; os.abort()").passed


def test_its_folder_is_empty_its_own_and_gone_afterwards(box: Sandbox) -> None:
    program = "import os, sys; print(os.listdir('.'), file=sys.stderr); open('a', 'w').write('x'); os.mkdir('d', 0)"
    outcome = box.run(program + "; print(os.getcwd(), file=sys.stderr)")
    listed, folder = outcome.stderr.split()
    assert outcome.passed
    assert listed == "[]"
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    "attempt",
    [
        "open({path!r}, 'w')",
        "open({path!r}, 'a')",
        "open({path!r} + '.new', 'x')",
        "os.truncate({path!r}, 0)",
        "os.unlink({path!r})",
        "os.rename({path!r}, 'here')",
        "os.link({path!r}, 'here')",
        "os.chmod({path!r}, 0)",
        "os.utime({path!r})",
        "os.symlink({path!r}, 'l'); open('l', 'w')",
        "os.mkdir({path!r} + '.d')",
        "open(os.path.join(os.getcwd(), '..', 'narrows-escape'), 'w')",
        "open(os.path.join('/proc/self/root', {path!r}.lstrip('/')), 'w')",
    ],
)
def test_nothing_is_written_outside(box: Sandbox, tmp_path: Path, attempt: str) -> None:
    tmp_path.chmod(0o777)
    target = tmp_path / "victim"
    target.write_text("safe")
    target.chmod(0o666)
    stamp = target.stat().st_mtime_ns
    outcome = box.run("import os\n" + attempt.format(path=str(target)))
    assert not outcome.passed
    assert "Error" in outcome.reason
    assert (target.read_text(), target.stat().st_mtime_ns, os.listdir(tmp_path)) == ("safe", stamp, ["victim"])


def test_home_and_tmp_are_not_written(box: Sandbox) -> None:
    for path in (Path.home() / "narrows-escape", Path("/tmp/narrows-escape"), Path("/dev/shm/narrows-escape")):
        assert not box.run(f"open({str(path)!r}, 'w')").passed
        assert not path.exists()


def test_there_is_no_network(box: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        port = server.getsockname()[1]
        for attempt in (
            f"socket.create_connection(('127.0.0.1', {port}), 0.5)",
            "socket.create_connection(('192.0.2.1', 80), 0.5)",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
            "socket.socket(socket.AF_UNIX)",
            "socket.getaddrinfo('example.com', 80)",
        ):
            outcome = box.run("import socket\n" + attempt)
            assert (outcome.passed, "timeout" in outcome.reason) == (False, False)
        with pytest.raises(TimeoutError):
            server.accept()


def test_there_are_no_other_processes_but_threads(box: Sandbox) -> None:
    for attempt in ("os.fork()", "os.system('true') and 1/0", "subprocess.run(['/bin/true'])"):
        assert not box.run("import os, subprocess\n" + attempt).passed
    assert not box.run("import os\nwhile True:\n    os.fork()").passed
    assert not box.run(f"import os\nos.kill({os.getpid()}, 0)").passed
    assert box.run("import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()").passed


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import os; os.close(2); import time; time.sleep(60)",
        "import signal, time\nfor s in (2, 15, 24): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        "import os; os.execv('/bin/sh', ['sh', '-c', 'while :; do :; done'])",
    ],
)
def test_nothing_goes_on_beyond_its_limit(hasty: Sandbox, program: str) -> None:
    began = time.monotonic()
    outcome = hasty.run(program)
    assert (outcome.passed, outcome.reason) == (False, "timeout")
    assert time.monotonic() - began < 30
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"while :; do :; done" in line for line in running)


def test_what_it_takes_is_bounded(box: Sandbox) -> None:
    assert box.run("x = bytearray(4 << 30)").reason == "MemoryError"
    assert "File too large" in box.run("open('big', 'wb').write(bytes(20 << 20))").reason
    assert box.run("i = 0\nwhile True:\n    open(str(i), 'wb').write(bytes(8 << 20)); i += 1").reason == "disk"
    loud = box.run("import sys\nfor _ in range(100): print('x' * 99999); sys.stderr.write('y' * 99999)")
    assert (loud.passed, len(loud.stderr)) == (True, module.MAX_STDERR)


def test_the_environment_is_clean(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    assert box.run("import os; assert 'API_KEY' not in os.environ").passed


def test_a_machine_that_cannot_hold_programs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.JAIL.read_text()
    weak = tmp_path / "jail.py"
    monkeypatch.setattr(module, "JAIL", weak)
    tmp_path.chmod(0o755)
    for lock in ("restrict_files(config", "restrict_calls()"):  # one lock does not hold, and says nothing of it
        weak.write_text(real.replace(f"            {lock}", f"            lambda: {lock}"))
        with pytest.raises(SandboxError, match=r"could .*sandbox=off"):
            Sandbox().run("pass")
    weak.write_text(real.replace('"syscall", 444, None, 0, 1', '"syscall", 9999'))
    with pytest.raises(SandboxError, match=r"no Landlock .*sandbox=off"):
        Sandbox().run("pass")
    assert Sandbox(protect=False).run("pass").passed

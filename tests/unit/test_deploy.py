"""The Dockerfile, the systemd unit and the example configuration say what this program understands."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from narrows.cli import app
from narrows.serve.health import PUBLIC

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SERVE = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, arguments), continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    parts = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, rest in parts]


def unit() -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(DEPLOY / "narrows.service")
    return dict(parser["Service"])


def assert_serves(command: list[str]) -> None:
    """It is `narrows serve` with options there are."""
    assert [Path(command[0]).name, command[1]] == ["narrows", "serve"]
    known = {name for option in SERVE.params for name in option.opts}
    assert {word for word in command if word.startswith("--")} <= known


def config() -> dict[str, object]:
    return tomllib.loads((DEPLOY / "narrows.toml").read_text())


def test_the_image_runs_the_server_and_not_as_root() -> None:
    lines = instructions()
    last = lines[max(i for i, (name, _) in enumerate(lines) if name == "FROM") :]
    assert sum(name == "FROM" for name, _ in lines) == 2 and len([n for n, _ in last if n == "USER"]) == 1
    found = dict(last)
    assert found["USER"] != "0" and found["USER"].isdigit()  # a number, for systems that must see it is not root
    command = json.loads(found["ENTRYPOINT"]) + json.loads(found["CMD"])
    assert_serves(command)
    assert command[command.index("--port") + 1] == found["EXPOSE"]
    assert command[2:4] == ["--host", "0.0.0.0"]


def test_the_health_check_asks_what_needs_no_key() -> None:
    check = dict(instructions())["HEALTHCHECK"]
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", check)
    assert found and found[1] == dict(instructions())["EXPOSE"] and found[2] in PUBLIC
    code = json.loads(check[check.index("[") :])[2]
    compile(code, "health", "exec")
    refused = subprocess.run([sys.executable, "-c", code.replace(found[1], "9")], capture_output=True, timeout=30)
    assert refused.returncode != 0  # nobody answers there


def test_what_is_copied_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    copied = {
        word for name, rest in instructions() if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    }
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [asked] = re.findall(r"'\.\[(.*?)\]'", (DEPLOY / "Dockerfile").read_text())
    assert set(asked.split(",")) <= extras.keys()


def test_the_unit_serves_and_lets_requests_finish() -> None:
    service = unit()
    assert_serves(shlex.split(service["ExecStart"]))
    assert int(service["TimeoutStopSec"]) >= float(str(config()["shutdown-timeout"])) + 10
    assert service["KillMode"] == "mixed" and service["DynamicUser"] == "yes"


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    text = (DEPLOY / "narrows.service").read_text().replace("/opt/narrows/bin/narrows", sys.executable)
    path = tmp_path / "narrows.service"
    path.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60)
    about_it = [line for line in done.stderr.splitlines() if "narrows.service" in line]
    assert not about_it, about_it


def test_the_example_configuration_is_of_options_there_are() -> None:
    known = {option.name for option in SERVE.params}
    assert {key.replace("-", "_") for key in config()} <= known


@pytest.mark.long
def test_the_image_is_built_and_answers() -> None:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("there is no docker daemon")
    subprocess.run(["docker", "build", "-q", "-f", DEPLOY / "Dockerfile", "-t", "narrows-test", ROOT], check=True)
    done = subprocess.run(
        ["docker", "run", "--rm", "narrows-test", "--help"], capture_output=True, text=True, check=True
    )
    assert "--max-queued-requests" in done.stdout

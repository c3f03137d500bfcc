"""OpenAI's client for Node asks as its users do."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from servers import Server

FILES = Path(__file__).with_name("node")
FOLDER = Path(__file__).parents[2] / "build" / "node"  # kept: the packages are fetched once
OUT_OF_REACH = ("ENOTFOUND", "ECONN", "ETIMEDOUT", "EAI_AGAIN", "E403", "E404", "E5")  # the registry


@pytest.fixture(scope="module")
def script() -> Path:
    """The program that asks, beside the packages it needs."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("there is no node, or no npm: apt-get install nodejs npm")
    lock = FILES / "package-lock.json"
    FOLDER.mkdir(parents=True, exist_ok=True)
    fetched = FOLDER / "node_modules" / ".fetched"
    if not fetched.is_file() or fetched.read_bytes() != lock.read_bytes():
        for file in (lock, FILES / "package.json"):
            shutil.copy(file, FOLDER)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
        try:
            done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            pytest.skip("npm could not fetch the client: it took longer than 60 s")
        if any(word in done.stderr for word in OUT_OF_REACH):
            pytest.skip(f"npm could not fetch the client: {done.stderr.strip().splitlines()[0]}")
        assert done.returncode == 0, done.stderr
        fetched.write_bytes(lock.read_bytes())
    shutil.copy(FILES / "client.js", FOLDER)
    return FOLDER / "client.js"


@pytest.fixture(scope="module")
def results(script: Path, smol: Server) -> dict[str, Any]:
    done = subprocess.run(["node", script, smol.url, "smollm2"], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def want(smol: Server) -> dict[str, Any]:
    """What the same chat is answered without the client."""
    messages = [{"role": "user", "content": "Which letters come after A, B and C?"}]
    return smol.post("/v1/chat/completions", messages=messages, temperature=0, max_tokens=12).json()


def test_it_lists_models(results: dict[str, Any]) -> None:
    assert results["models"] == ["smollm2"]


def test_it_chats_and_streams(results: dict[str, Any], want: dict[str, Any]) -> None:
    choice = want["choices"][0]
    assert (results["chat"]["text"], results["chat"]["reason"]) == (choice["message"]["content"], "length")
    assert results["stream"]["text"] == choice["message"]["content"]
    for way in ("chat", "stream"):
        assert results[way]["usage"]["completion_tokens"] == 12


def test_it_gets_calls_of_tools(results: dict[str, Any]) -> None:
    assert results["tools"]["whole"] == results["tools"]["grown"]
    [call] = results["tools"]["whole"]["calls"]
    assert call["name"] == "weather"
    assert isinstance(call["arguments"]["city"], str)
    assert results["tools"]["whole"]["reason"] == "tool_calls"


def test_it_gets_json_of_a_schema(results: dict[str, Any]) -> None:
    assert results["jsonSchema"].keys() == {"city"}


def test_it_gets_responses(results: dict[str, Any], want: dict[str, Any]) -> None:
    text = want["choices"][0]["message"]["content"]
    assert results["responses"] == {"text": text, "streamed": text, "last": "response.incomplete"}


def test_it_raises_its_own_errors(results: dict[str, Any]) -> None:
    assert results["errors"] == {"bad": True, "status": 400, "param": "temperature"}

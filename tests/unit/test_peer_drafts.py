"""llama.cpp's speculation beside ours, by a program that only pretends to be its server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from narrows import SamplingParams
from narrows.cli import app
from narrows.measure.peers.speculation import arguments, llama_server, llama_servers
from narrows.measure.servers import StartError
from narrows.stack import StackError

# Answers with the last token of the prompt, again and again; with a draft two of three guesses are right.
SERVER = f"""#!{sys.executable}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

print("loading")
if "-md" in sys.argv and "absent" in sys.argv[sys.argv.index("-md") + 1]:
    sys.exit("cannot load the draft model")

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({{}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        n = asked["n_predict"]
        assert asked["ignore_eos"] and asked["return_tokens"] and asked["cache_prompt"]
        timings = {{"predicted_n": n, "predicted_per_second": 4.0}}
        if "--spec-type" in sys.argv:
            timings |= {{"draft_n": 3 * n // 4, "draft_n_accepted": n // 2}}
        self.reply({{"tokens": asked["prompt"][-1:] * n, "timings": timings}})
    def reply(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(SERVER)
    program.chmod(0o755)
    return program.parent


def test_its_drafts_are_written_in_our_words(tiny_path: Path) -> None:
    assert arguments("none") == []
    assert arguments("ngram:k=4") == ["--spec-type", "ngram-simple"]
    model = f"--spec-type draft-simple -md {tiny_path} --spec-draft-n-max 5"
    assert arguments(f"model:model={tiny_path},k=5") == model.split()
    assert arguments("head") is arguments("ngram|head") is None
    with pytest.raises(StackError, match="did you mean 'ngram'"):
        arguments("ngrm")


def test_it_answers_the_same_prompts_in_turn(folder: Path, tiny_path: Path, tmp_path: Path) -> None:
    out, prompts = tmp_path / "draft.json", tmp_path / "prompts.txt"
    prompts.write_text("a cab\nbad face\n")
    options = ["--draft", "ngram", "--draft", "self:skip=0", "--prompts", prompts, "--samples", 2, "--tokens", 8]
    arguments = ["bench", "draft", tiny_path, *options, "-t", 1, "--llamacpp", folder, "--batch", "1,2", "--out", out]
    result = CliRunner().invoke(app, [str(word) for word in arguments])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["rows"]
    names = ["none", "ngram", "self:skip=0", "llama.cpp none", "llama.cpp ngram"]
    assert [(row["draft"], row["batch"]) for row in rows] == [(name, batch) for batch in (1, 2) for name in names]
    for row in rows:
        if row["draft"] == "llama.cpp ngram":
            assert (row["acceptance_length"], row["drafted_tokens_per_token"], row["num_tokens"]) == (2, 0.75, 16)
            assert row["tokens_per_second"]["median"] == 4 * row["batch"]
            plain = next(other for other in rows if (other["draft"], other["batch"]) == ("none", row["batch"]))
            ratio, speed = row["plain_ratio"], plain["tokens_per_second"]
            assert (ratio["min"], ratio["max"]) == (4 * row["batch"] / speed["max"], 4 * row["batch"] / speed["min"])


def test_one_that_does_not_start_is_named_with_its_last_words(folder: Path, tiny_path: Path) -> None:
    options = ["-md", "absent.gguf"]
    with (
        pytest.raises(StartError, match="llama-server did not start: cannot load the draft model"),
        llama_server(folder / "llama-server", tiny_path, options, 1, 1),
    ):
        pass


def test_a_folder_without_the_server_is_named(tmp_path: Path, tiny_path: Path) -> None:
    with pytest.raises(ValueError, match="--llamacpp: there is no llama-server in"):
        llama_servers(tmp_path, tiny_path, [], 1)


def test_it_ends_with_its_scope(folder: Path, tiny_path: Path) -> None:
    with llama_server(folder / "llama-server", tiny_path, [], 1, 2) as server:
        params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        assert server.answer([[1, 2], [5, 6]], params) == ([[2, 2, 2], [6, 6, 6]], 8.0)
    assert not server.is_ready()

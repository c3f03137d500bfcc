"""What evaluation harnesses ask for: scores of given answers, as lm-evaluation-harness sends them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from servers import Server

from narrows import LLM, SamplingParams

ROOT = Path(__file__).parents[2]
WORDS = [json.loads(line) for line in (ROOT / "examples" / "lm_eval_words.jsonl").read_text().splitlines()]


def offline_scores(llm: LLM, text: str, choices: list[str]) -> list[float]:
    """Log-likelihood of each choice behind the text."""
    start = len(llm.tokenizer.encode(text, add_special=False))
    ids = [llm.tokenizer.encode(f"{text} {choice}", add_special=False) for choice in choices]
    done = llm.generate(ids, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1))
    return [sum(p.logprob for p in (out.prompt_logprobs or [])[start:] if p) for out in done]


def test_scores_over_http_are_the_offline_scores(smol: Server, smollm2_path: Path) -> None:
    llm = LLM(smollm2_path, num_threads=1)
    right = 0
    for row in WORDS:
        start = len(smol.post("/tokenize", prompt=row["text"], add_special_tokens=False).json()["tokens"])
        scores = []
        for choice in row["choices"]:
            ask = {"prompt": f"{row['text']} {choice}", "add_special_tokens": False}
            ids = smol.post("/tokenize", **ask).json()["tokens"]
            reply = smol.complete([ids], echo=True, max_tokens=1, logprobs=1, seed=1234)
            logprobs = reply["choices"][0]["logprobs"]
            assert len(logprobs["token_logprobs"]) == len(ids) + 1
            scores.append(sum(logprobs["token_logprobs"][start:-1]))
        assert scores == pytest.approx(offline_scores(llm, row["text"], row["choices"]), abs=1e-4)
        right += max(range(len(scores)), key=scores.__getitem__) == row["label"]
    assert right >= 8


def test_a_harness_finds_the_tokenizer(smol: Server) -> None:
    info = smol.client.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert "messages" in info["chat_template"]


@pytest.mark.long
def test_the_harness_itself(smol: Server) -> None:
    pytest.importorskip("lm_eval")
    model = f"model=smollm2,base_url={smol.url}/v1/completions,num_concurrent=2"
    args = ["--model", "local-completions", "--include_path", "examples", "--tasks", "narrows_words"]
    command = [sys.executable, "-m", "lm_eval", *args, "--model_args", model]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = (line for line in done.stdout.splitlines() if "|acc " in line)
    assert float(line.split("|")[7]) >= 0.8

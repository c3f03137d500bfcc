"""Speculation behind the server: the same answers, and its figures in the metrics (O6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from servers import Server

REPEAT = "one two three four five six seven eight nine ten. one two three four five"


def test_drafts_change_no_answer_and_are_counted(
    start: Callable[..., Server], smol: Server, smollm2_path: Path
) -> None:
    stack = "draft=ngram pace=fixed"
    server = start(smollm2_path, "--served-model-name", "smollm2", "--threads", "1", "-c", "1024", "--stack", stack)
    server.ready()
    given = {"max_tokens": 24, "logprobs": 1}
    want, got = (s.complete(REPEAT, **given) for s in (smol, server))
    assert got["choices"] == want["choices"]
    events = [e for e in server.stream("/v1/completions", prompt=REPEAT, temperature=0, max_tokens=24) if e != "[DONE]"]
    assert "".join(e["choices"][0]["text"] for e in events) == want["choices"][0]["text"]
    assert got["ledger"]["speculation"]["acceptance_length"] > 1
    labels = {"model_name": "smollm2"}
    kept = server.metric("vllm:spec_decode_num_accepted_tokens_total", **labels)
    assert 0 < kept <= server.metric("vllm:spec_decode_num_draft_tokens_total", **labels)

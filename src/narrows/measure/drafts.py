"""Speculation beside plain decoding: the same prompts in turn, so many together, with and without a draft."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from ..compress.sequences import read_prompts
from ..progress import bar
from ..sampling import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from narrows import LLM

PLAIN = "none"


@dataclass(slots=True)
class _Runs:
    """One draft's answers, a value for the prompts that were answered together."""

    llm: LLM
    speeds: list[float] = field(default_factory=list)  # tokens/s after the first of each answer
    cpu: list[float] = field(default_factory=list)  # processor seconds of whole answers
    tokens: list[list[int]] = field(default_factory=list)  # of every answer


def choose_prompts(llm: LLM, path: Path | None, count: int) -> list[list[int]]:
    """`count` of a file's prompts, or of the openers, evenly spread."""
    prompts = read_prompts(llm, path)
    return [prompts[i * len(prompts) // count] for i in range(min(count, len(prompts)))]


def measure(
    load: Callable[[str], LLM],
    drafts: Sequence[str],
    path: Path | None,
    count: int,
    params: SamplingParams,
    batches: Sequence[int] = (1,),
) -> Iterator[dict[str, Any]]:
    """For each number of prompts answered together a row of plain decoding and one of each draft.

    `load` gives a model with a draft, or with "none". Ratios are paired by prompts, as are the comparisons of tokens.
    """
    for batch in batches:
        yield from _measure({draft: _Runs(load(draft)) for draft in (PLAIN, *drafts)}, path, count, params, batch)


def _measure(
    runs: dict[str, _Runs], path: Path | None, count: int, params: SamplingParams, batch: int
) -> Iterator[dict[str, Any]]:
    prompts = choose_prompts(runs[PLAIN].llm, path, count)
    with bar(f"{batch} together", -(-len(prompts) // batch), still=True) as advance:
        for i in range(0, len(prompts), batch):
            for run in runs.values():
                began = time.process_time()
                answers = [answer.outputs[0] for answer in run.llm.generate(prompts[i : i + batch], params)]
                run.cpu.append(time.process_time() - began)
                run.speeds.append(sum(answer.metrics.tokens_per_second or float("nan") for answer in answers))
                run.tokens += [answer.token_ids for answer in answers]
            advance()
    plain = runs[PLAIN]
    for draft, run in runs.items():
        figures = run.llm.ledger.drafts.json()
        ledger = run.llm.ledger
        yield {
            "draft": draft,
            "batch": batch,
            "tokens_per_second": _spread(run.speeds),
            "plain_ratio": _spread([a / b for a, b in zip(run.speeds, plain.speeds, strict=True)]),
            "plain_cpu_ratio": _spread([a / b for a, b in zip(plain.cpu, run.cpu, strict=True)]),
            "acceptance_length": figures["acceptance_length"] or 1.0,
            "target_forwards_per_token": ledger.num_steps / ledger.num_output,
            "drafted_tokens_per_token": ledger.drafts.num_drafted / ledger.num_output,
            "draft_share": ledger.drafts.seconds / max(ledger.step_seconds, 1e-9),
            "same": sum(a == b for a, b in zip(run.tokens, plain.tokens, strict=True)) / len(plain.tokens),
            "acceptance_by_position": figures["acceptance_by_position"],
            "undrafted_steps": figures["undrafted_steps"],
            "num_prompts": len(run.tokens),
            "num_tokens": ledger.num_output,
        }


def _spread(values: Sequence[float]) -> dict[str, float]:
    known = [v for v in values if v == v] or [0.0]
    return {"median": median(known), "min": min(known), "max": max(known)}

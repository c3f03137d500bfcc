"""Speculation beside plain decoding: the same prompts in turn, so many together, with and without a draft."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from ..compress.sequences import read_prompts
from ..drafters.base import Source
from ..ledger import Ledger, added
from ..pacers.fixed import Fixed
from ..progress import bar
from ..sampling import SamplingParams
from ..stack import Stack

if TYPE_CHECKING:
    from pathlib import Path

    from narrows import LLM
    from narrows.speculation import Speculation

PLAIN = "none"
ENOUGH, OTHER = 4, "other"  # prompts of a kind, for a figure of their own
FIRST = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)  # so that drafters have read the prompt too


class Answerer(Protocol):
    """What answers prompts with a draft: a model here, or another engine."""

    def read(self, prompts: Sequence[list[int]]) -> None:
        """Puts the prompts into its caches."""
        ...

    def answer(self, prompts: Sequence[list[int]], params: SamplingParams) -> tuple[list[list[int]], float]:
        """The token ids of each answer, and the tokens/s after the first of all of them."""
        ...

    def figures(self) -> dict[str, Any]:
        """What became of the drafts of all answers so far."""
        ...

    def anew(self) -> Answerer:
        """The same with figures of its own."""
        ...


@dataclass(slots=True)
class Own:
    """Narrows itself, whose engine drafts in turn in several ways."""

    llm: LLM
    speculation: Speculation | None
    ledger: Ledger = field(default_factory=Ledger)

    def read(self, prompts: Sequence[list[int]]) -> None:
        speculation = self.speculation
        self.llm.engine.speculation = speculation and speculation.other(speculation.drafter, Fixed())
        self.llm.generate(prompts, FIRST)

    def answer(self, prompts: Sequence[list[int]], params: SamplingParams) -> tuple[list[list[int]], float]:
        self.llm.engine.ledger, self.llm.engine.speculation = Ledger(), self.speculation
        answers = [answer.outputs[0] for answer in self.llm.generate(prompts, params)]
        self.ledger = added(self.ledger, self.llm.ledger)
        speeds = (answer.metrics.tokens_per_second or float("nan") for answer in answers)
        return [answer.token_ids for answer in answers], sum(speeds)

    def figures(self) -> dict[str, Any]:
        ledger, drafts = self.ledger, self.ledger.drafts.json()
        return {
            "acceptance_length": drafts["acceptance_length"] or 1.0,
            "target_forwards_per_token": ledger.num_steps / ledger.num_output,
            "drafted_tokens_per_token": ledger.drafts.num_drafted / ledger.num_output,
            "draft_share": ledger.drafts.seconds / max(ledger.step_seconds, 1e-9),
            "acceptance_by_position": drafts["acceptance_by_position"],
            "undrafted_steps": drafts["undrafted_steps"],
            "num_tokens": ledger.num_output,
        }

    def anew(self) -> Own:
        return Own(self.llm, self.speculation)


@dataclass(slots=True)
class _Runs:
    """One draft's answers, a value for the prompts that were answered together."""

    of: Answerer
    speeds: list[float] = field(default_factory=list)  # tokens/s after the first of each answer
    cpu: list[float] = field(default_factory=list)  # processor seconds of whole answers, where they are ours
    tokens: list[list[int]] = field(default_factory=list)  # of every answer

    def answer(self, prompts: Sequence[list[int]], params: SamplingParams) -> None:
        began = time.process_time()
        tokens, speed = self.of.answer(prompts, params)
        self.cpu.append(time.process_time() - began)
        self.speeds.append(speed)
        self.tokens += tokens


def choose_prompts(llm: LLM, path: Path | None, count: int) -> tuple[list[list[int]], list[str]]:
    """`count` of a file's prompts, or of the openers, evenly spread, and the kind of each: its "category", or ""."""
    prompts = read_prompts(llm, path)
    chosen = [i * len(prompts) // count for i in range(min(count, len(prompts)))]
    kinds = [""] * len(prompts)
    if path is not None and path.suffix == ".jsonl":
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
        kinds = [str(json.loads(line).get("category", "")) for line in lines if line.strip()]
    return [prompts[i] for i in chosen], _some([kinds[i] for i in chosen])


def _some(kinds: list[str]) -> list[str]:
    """Kinds of which there are few stand together."""
    counts = Counter(kinds)
    return [kind if counts[kind] >= ENOUGH else OTHER for kind in kinds]


def measure(
    load: Callable[[Stack], LLM],
    line: str,
    drafts: Sequence[str],
    path: Path | None,
    count: int,
    params: Sequence[SamplingParams],
    batches: Sequence[int] = (1,),
    peers: Mapping[str, Callable[[int], AbstractContextManager[Answerer]]] | None = None,
) -> Iterator[dict[str, Any]]:
    """For each number of prompts answered together, and each of the `params`, a row of plain decoding, one of each
    draft, one of each peer.

    `line` is the stack but for the draft, with which `load` gives a model; a peer is started for so many requests at
    once. Prompts are answered in turn with each of `params`, which differ in temperature, and are cached when they
    are: what is measured is decoding. Ratios are paired by prompts, as are the comparisons of tokens; all are over our
    own plain decoding.
    """
    own = _load(load, line, drafts)
    prompts, kinds = choose_prompts(own[PLAIN].llm, path, count)
    for batch in batches:
        with ExitStack() as running:
            others = {name: running.enter_context(start(batch)) for name, start in (peers or {}).items()}
            systems: dict[str, Answerer] = {**own, **others}
            runs = {name: [_Runs(system.anew()) for _ in params] for name, system in systems.items()}
            with bar(f"{batch} together", -(-len(prompts) // batch), still=True) as advance:
                for some in (prompts[i : i + batch] for i in range(0, len(prompts), batch)):
                    for name, system in systems.items():
                        system.read(some)
                        for run, chosen in zip(runs[name], params, strict=True):
                            run.answer(some, chosen)
                    advance()
            for i, chosen in enumerate(params):
                each = {name: of[i] for name, of in runs.items()}
                for row in _rows(each, kinds if batch == 1 else []):
                    yield {"batch": batch, "temperature": chosen.temperature, **row}


def _load(load: Callable[[Stack], LLM], line: str, drafts: Sequence[str]) -> dict[str, Own]:
    """By name, plain decoding first. Those that draft with the same sources share a model, which reads prompts once."""
    loaded: dict[frozenset[Source], LLM] = {}
    found: dict[str, Own] = {}
    for name in (*drafts, PLAIN):
        stack = Stack.parse(f"{line} draft={name}")
        sources = frozenset(stack.draft.sources if stack.draft else ())
        if sources not in loaded:
            loaded[sources] = load(stack)
        llm = loaded[sources]
        same = llm.engine.speculation
        found[name] = Own(llm, same.other(stack.draft, stack.pace) if same and stack.draft else None)
    return {PLAIN: found.pop(PLAIN), **found}


def _rows(runs: dict[str, _Runs], kinds: list[str]) -> Iterator[dict[str, Any]]:
    plain = runs[PLAIN]
    for draft, run in runs.items():
        ratios = [a / b for a, b in zip(run.speeds, plain.speeds, strict=True)]
        by_kind: dict[str, list[float]] = {}
        for kind, value in zip(kinds, ratios, strict=False):
            by_kind.setdefault(kind, []).append(value)
        ours = {"plain_cpu_ratio": _spread([a / b for a, b in zip(plain.cpu, run.cpu, strict=True)])}
        yield {
            "draft": draft,
            "tokens_per_second": _spread(run.speeds),
            "total_ratio": _seconds(plain) / (_seconds(run) or 1),
            "plain_ratio": _spread(ratios),
            "same": sum(a == b for a, b in zip(run.tokens, plain.tokens, strict=True)) / len(plain.tokens),
            "num_prompts": len(run.tokens),
            **({"by_kind": {kind: _spread(some) for kind, some in by_kind.items()}} if len(by_kind) > 1 else {}),
            **(ours if isinstance(run.of, Own) else {}),
            **run.of.figures(),
        }


def _seconds(run: _Runs) -> float:
    """In proportion to the time of all answers: they are of one length."""
    return sum(1 / speed for speed in run.speeds if speed == speed)


def _spread(values: Sequence[float]) -> dict[str, float]:
    known = [v for v in values if v == v] or [0.0]
    return {"median": median(known), "min": min(known), "max": max(known)}

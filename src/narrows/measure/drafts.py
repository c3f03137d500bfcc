"""Speculation beside plain decoding: the same prompts in turn, so many together, with and without a draft."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from ..compress.sequences import read_prompts
from ..drafters.base import Drafter, Source
from ..drafters.first import First
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
    """Narrows itself, whose engine drafts in turn in several ways.

    One of those that share a model reads prompts for all, once with each of `reads`.
    """

    llm: LLM
    speculation: Speculation | None
    reads: Sequence[Speculation | None] = ()
    layers: tuple[int, ...] = ()  # whose states its heads want
    ledger: Ledger = field(default_factory=Ledger)

    def read(self, prompts: Sequence[list[int]]) -> None:
        for speculation in self.reads:
            self._use(speculation)
            self.llm.generate(prompts, FIRST)

    def answer(self, prompts: Sequence[list[int]], params: SamplingParams) -> tuple[list[list[int]], float]:
        self._use(self.speculation)
        answers = [answer.outputs[0] for answer in self.llm.generate(prompts, params)]
        self.ledger = added(self.ledger, self.llm.ledger)
        speeds = (answer.metrics.tokens_per_second or float("nan") for answer in answers)
        return [answer.token_ids for answer in answers], sum(speeds)

    def _use(self, speculation: Speculation | None) -> None:
        self.llm.engine.ledger, self.llm.engine.speculation = Ledger(), speculation
        has_head = speculation is not None and any(source.kind == "head" for source in speculation.readers)
        self.llm.loaded.model.hidden_of = self.layers if has_head else ()

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
        return replace(self, ledger=Ledger())


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
    once. Prompts are answered in turn with each of `params`, which differ in temperature, each time by another system
    first, and they are cached before: what is measured is decoding. Ratios are paired by prompts, as are the
    comparisons of tokens; all are over our own plain decoding with the same loaded model, as where in memory that lies
    is worth some percent.
    """
    own = _load(load, line, drafts)
    prompts, kinds = choose_prompts(own[0][PLAIN].llm, path, count)
    for batch in batches:
        with ExitStack() as running:
            others = {name: running.enter_context(start(batch)) for name, start in (peers or {}).items()}
            runs: list[dict[str, list[_Runs]]] = [
                {name: [_Runs(system.anew()) for _ in params] for name, system in systems.items()}
                for systems in ({**own[0], **others}, *own[1:])
            ]
            with bar(f"{batch} together", -(-len(prompts) // batch), still=True) as advance:
                for turn, start in enumerate(range(0, len(prompts), batch)):
                    for systems in runs:
                        _answer([*systems.values()], prompts[start : start + batch], params, turn)
                    advance()
            for i, chosen in enumerate(params):
                for first, systems in enumerate(runs):
                    each = {name: of[i] for name, of in systems.items()}
                    for row in _rows(each, kinds if batch == 1 else []):
                        if row["draft"] != PLAIN or not first:
                            yield {"batch": batch, "temperature": chosen.temperature, **row}


def _answer(
    systems: list[list[_Runs]], prompts: Sequence[list[int]], params: Sequence[SamplingParams], turn: int
) -> None:
    """Each reads the prompts, then each answers them, once with each of `params`."""
    for runs in systems:
        runs[0].of.read(prompts)
    first = turn % len(systems)
    for runs in systems[first:] + systems[:first]:
        for run, chosen in zip(runs, params, strict=True):
            run.answer(prompts, chosen)


def _load(load: Callable[[Stack], LLM], line: str, drafts: Sequence[str]) -> list[dict[str, Own]]:
    """The systems that share a model, by name, plain decoding first: all share one, but that each head has its own."""
    chosen = {name: draft for name in drafts if (draft := Stack.parse(f"{line} draft={name}").draft)}
    heads = list(dict.fromkeys(head for draft in chosen.values() if (head := _head(draft)))) or [None]
    sharing = [{name: d for name, d in chosen.items() if (_head(d) or heads[0]) == head} for head in heads]
    return [_share(load, Stack.parse(line), some) for some in sharing]


def _head(draft: Drafter) -> Source | None:
    return next((source for source in draft.sources if source.kind == "head"), None)


def _share(load: Callable[[Stack], LLM], stack: Stack, drafts: Mapping[str, Drafter]) -> dict[str, Own]:
    """Prompts are read by all drafters, heads first: these know only what the target makes of them as it reads."""
    llm = load(replace(stack, draft=First(tuple(drafts.values())) if drafts else None))
    full = llm.engine.speculation
    if full is None:
        return {PLAIN: Own(llm, None, [None])}
    parts = [part for d in drafts.values() for part in (d.drafters if isinstance(d, First) else [d])]
    once = {part.sources: part for part in sorted(parts, key=lambda part: _head(part) is None)}
    reads = [replace(full, drafter=part, pacer=Fixed()) for part in once.values()]
    plain = Own(llm, None, reads, llm.loaded.model.hidden_of)
    others = {
        name: replace(plain, speculation=full.other(draft, stack.pace), reads=()) for name, draft in drafts.items()
    }
    return {PLAIN: plain, **others}


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

"""Runs measures on a candidate and its baseline, keeping every record, so that a run that was stopped goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from narrows.methods import show
from narrows.sampling import SamplingParams

from . import MEASURES
from .base import DataError, Item, Measure, Record
from .gates import judge
from .statistics import summarise

if TYPE_CHECKING:
    from narrows import LLM

COST_CONTEXT = 1024  # tokens read before the bytes of a token are counted
COST_TOKENS = 32

Track = Callable[[str, int], AbstractContextManager[Callable[[], None]]]  # (label, total) -> call it for each one done


@dataclass(frozen=True, slots=True)
class Subject:
    """A model under test. `identity` (a hash of its files) tells its records from those of others."""

    model: LLM
    name: str
    identity: str

    @property
    def key(self) -> list[str]:
        return [self.identity, str(self.model.stack), version("narrows")]


class Journal:
    """Records in a file, a line each, as soon as they are known. A line that was cut short counts as not written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, Record] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                self._known[entry["key"]] = entry["record"]
            except (ValueError, KeyError, TypeError):
                continue
        self._file = path.open("a", encoding="utf-8")
        if text and not text.endswith("\n"):
            self._file.write("\n")

    def get(self, key: str) -> Record | None:
        return self._known.get(key)

    def add(self, key: str, record: Record) -> Record:
        """Returns the record as it will be read back."""
        line = json.dumps({"key": key, "record": record}, default=_plain)
        self._file.write(line + "\n")
        self._file.flush()
        self._known[key] = json.loads(line)["record"]
        return self._known[key]

    def close(self, *, remove: bool = False) -> None:
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)


def untracked(label: str, total: int) -> AbstractContextManager[Callable[[], None]]:
    """Progress that nobody watches."""
    return nullcontext(lambda: None)


def evaluate(
    measures: Mapping[str, Measure],
    candidate: Subject,
    baseline: Subject | None,
    journal: Journal,
    *,
    data: Path | None = None,
    limit: int | None = None,
    optional: bool = False,
    track: Track = untracked,
) -> Iterator[dict[str, Any]]:
    """The result of each measure by name, as it is done: its metrics, or why it was skipped.

    `baseline` None says that the candidate is the unmodified model: it is measured once and compared with nothing.
    With `optional` a measure whose data is missing is skipped; otherwise DataError is raised, before anything is run.
    """
    source = (baseline or candidate).model
    todo: dict[str, tuple[Measure, Sequence[Item]]] = {}
    skipped: dict[str, str] = {}
    for name, measure in measures.items():
        if measure.joint and baseline is None:
            skipped[name] = "it compares a model with its baseline, and this is the unmodified model"
            continue
        try:
            todo[name] = measure, list(islice(measure.items(data, source), limit))
        except DataError as error:
            if not optional:
                raise
            skipped[name] = str(error)
    for name, measure in measures.items():
        if name in skipped:
            yield {"measure": name, "settings": show(measure, MEASURES), "skipped": skipped[name]}
            continue
        measure, items = todo[name]
        if measure.joint:
            assert baseline is not None
            records = _records(name, measure, candidate, baseline, items, journal, track)
            theirs = None
        else:
            theirs = _records(name, measure, baseline, None, items, journal, track) if baseline else None
            records = _records(name, measure, candidate, None, items, journal, track)
        summaries = [s for metric in measure.metrics if (s := summarise(metric, records, theirs))]
        for summary in summaries:
            summary |= judge(name, summary) or {}
        yield {
            "measure": name,
            "settings": show(measure, MEASURES),
            "items": len(items),
            "left_out": Counter(r["skipped"] for r in records if "skipped" in r),
            "first_item": items[0].id if items else None,
            "metrics": summaries,
        }


def _records(
    name: str,
    measure: Measure,
    subject: Subject,
    baseline: Subject | None,
    items: Sequence[Item],
    journal: Journal,
    track: Track,
) -> list[Record]:
    """One record per item, in their order: from the journal where it has them, else measured now."""
    whose = [show(measure, MEASURES), *subject.key, *(baseline.key if baseline else [])]
    keys = {item.id: _digest([*whose, item.id, repr(item.content)]) for item in items}
    found = {id: record for id, key in keys.items() if (record := journal.get(key)) is not None}
    left = [item for item in items if item.id not in found]
    label = f"{name} of {subject.name}"
    with track(label, len(items)) as done:
        for _ in found:
            done()
        for record in measure.run(subject.model, baseline.model if baseline else None, left) if left else ():
            found[record["id"]] = journal.add(keys[record["id"]], record)
            done()
    missing = [item.id for item in items if item.id not in found]
    if missing:
        raise RuntimeError(f"{name} gave no record of {missing[0]}")
    return [found[item.id] for item in items]


def token_cost(model: LLM, context: int = COST_CONTEXT) -> dict[str, float]:
    """Bytes that a token makes the model read at about `context` tokens, as the ledger counts them while it decodes."""
    context = max(1, min(context, model.max_model_len - COST_TOKENS - 1))
    tokens = np.random.default_rng(0).integers(model.engine.vocab_size, size=context).tolist()
    params = SamplingParams(temperature=0, max_tokens=COST_TOKENS, ignore_eos=True, detokenize=False)
    metrics = model.generate([tokens], params)[0].metrics
    weights, kv = metrics.weight_bytes_per_token or 0.0, metrics.kv_bytes_per_token or 0.0
    return {"context": context, "weight_bytes": weights, "kv_bytes": kv, "bytes_per_token": weights + kv}


def _digest(parts: Sequence[str]) -> str:
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    """What JSON does not know: numpy's numbers."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a record holds a {type(value).__name__}, which JSON cannot")

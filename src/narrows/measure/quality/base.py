"""What a measure of quality is, and what it may ask of the models it judges.

A measure is a frozen dataclass whose fields are its settings: ``kl:window=512`` builds one. It lists its items, the
same ones for every model, and yields one record per item as it is done, so that a run can stop and go on. Records of
the candidate and of the baseline are paired by item.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from narrows import LLM

Record = dict[str, Any]  # JSON; "id" names the item, the metrics' keys hold its figures


class DataError(ValueError):
    """A data set that is missing or not what the measure reads; the message names the file and the fix."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to measure. `id` is unique within a measure and the same in every run with the same settings."""

    id: str
    content: Any


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a measure: how it is reduced over records, and which way is better. Records without it are left out.

    Kinds: "mean" of record[key]; "pass", a mean of booleans that McNemar's test pairs; "perplexity", exp of a mean;
    "p99" and "max" of all the numbers in the records' lists.
    """

    name: str
    better: str  # "higher" | "lower"
    kind: str = "mean"
    key: str = ""  # of the record; the metric's name when empty
    weight: str = ""  # of the record: how many observations the record stands for; one when empty
    baseline: str = ""  # of a joint record: where the baseline's figure is, when it has one


class Measure(Protocol):
    """One file of this folder and one line of its registry."""

    joint: ClassVar[bool]  # compares candidate and baseline directly; else each is measured by itself
    dataset: ClassVar[str | None]  # name of its folder under --data; None when it can make its own text

    @property
    def metrics(self) -> tuple[Metric, ...]: ...

    def quick(self) -> Measure:
        """The same measure, small enough for ``--quick``."""
        ...

    def items(self, data: Path | None, model: LLM) -> Sequence[Item]:
        """What to measure, from `data` (the folder given as --data). Raises DataError."""
        ...

    def run(self, model: LLM, baseline: LLM | None, items: Sequence[Item]) -> Iterator[Record]:
        """A record per item, in any order, each as soon as it is known. `baseline` is given to joint measures only."""
        ...

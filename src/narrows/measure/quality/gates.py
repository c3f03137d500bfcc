"""Limits on what a technique may cost: what counts as the same model for most uses. One table, by measure and metric.

They are set where damage is told from rounding: a candidate that merely repacks its weights in eight bits passes with
room to spare, and defects that are planted in the tests do not pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SIGNIFICANT = 0.05  # p below which a difference in passes is taken for real


@dataclass(frozen=True, slots=True)
class Gate:
    """A limit on one field of a metric's summary; with `surely`, only what is beyond it by the whole interval fails."""

    field: str  # "value" | "ratio" | "difference"
    limit: float
    at_most: bool = True
    surely: bool = False  # for figures that a handful of items leave uncertain

    def __str__(self) -> str:
        return f"{'' if self.field == 'value' else self.field + ' '}{'<=' if self.at_most else '>='} {self.limit:g}"


GATES: dict[str, Gate] = {
    "ppl.perplexity": Gate("ratio", 1.02),
    "kl.mean": Gate("value", 0.005),
    "kl.p99": Gate(
        "value", 0.02
    ),  # what goes wrong in few places hides in a mean: positions off by one move it by 0.002
    "kl.worst": Gate("value", 0.1),
    "kl.top1": Gate("value", 0.95, at_most=False),
    "drift.kl": Gate("value", 0.005),
    "drift.p99": Gate("value", 0.02),
    "drift.top1": Gate("value", 0.95, at_most=False),
    "drift.repetition": Gate("difference", 0.05, surely=True),
}


def judge(measure: str, summary: dict[str, Any]) -> dict[str, Any] | None:
    """`gate` (what is asked) and `passed`, or None where nothing is asked or there is no baseline to ask it of.

    Passes are compared by McNemar's test: they fail when the candidate is worse by more than chance.
    """
    if summary["kind"] == "pass":
        if "p_value" not in summary:
            return None
        worse = summary["value"] < summary["baseline"] and summary["p_value"] < SIGNIFICANT
        return {"gate": f"not worse at p < {SIGNIFICANT:g}", "passed": not worse}
    gate = GATES.get(f"{measure}.{summary['metric']}")
    if gate is None or gate.field not in summary:
        return None
    estimate = summary if gate.field == "value" else summary[gate.field]
    value = estimate["value"]
    if gate.surely and estimate["interval"]:
        value = estimate["interval"][0 if gate.at_most else 1]
    return {"gate": str(gate), "passed": value <= gate.limit if gate.at_most else value >= gate.limit}

"""From outcomes to figures: one definition each.

TTFT is from sending a request to its first text. ITL is the gap between two pieces of a stream, which hold a token each
unless the server guesses ahead. TPOT is (last - first) / (tokens - 1) of a request. E2E is from sending to the end.
A request is good when it succeeded and kept every bound of the SLO; goodput is good requests a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .client import Outcome, errors

PERCENTILES = (50, 90, 95, 99)


def ttft(outcome: Outcome) -> float | None:
    return outcome.pieces[0] - outcome.sent if outcome.pieces else None


def tpot(outcome: Outcome) -> float | None:
    if outcome.num_output < 2 or not outcome.pieces:
        return None
    return (outcome.pieces[-1] - outcome.pieces[0]) / (outcome.num_output - 1)


def e2e(outcome: Outcome) -> float:
    return outcome.end - outcome.sent


BOUNDED = {"ttft": ttft, "tpot": tpot, "e2e": e2e}


def parse_slo(text: str) -> dict[str, float]:
    """Bounds in seconds, from "ttft=2,tpot=0.1". Raises ValueError."""
    slo: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            slo[name.strip()] = bound = float(value)
        except ValueError:
            bound = 0.0
        if name.strip() not in BOUNDED or not bound > 0:
            raise ValueError(
                f"--slo has {part!r}; it must be bounds in seconds of {', '.join(BOUNDED)}, as ttft=2,tpot=0.1"
            )
    return slo


def is_good(outcome: Outcome, slo: Mapping[str, float]) -> bool:
    """Whether it succeeded within the bounds; an answer of one token has no TPOT to exceed."""
    if outcome.error:
        return False
    found = {name: BOUNDED[name](outcome) for name in slo}
    return all(value is None or value <= slo[name] for name, value in found.items())


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, percentiles (linear between ranks) and maximum; None without values."""
    if not values:
        return None
    return {
        "mean": float(np.mean(values)),
        **{f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES},
        "max": float(np.max(values)),
    }


def summary(outcomes: Sequence[Outcome], slo: Mapping[str, float]) -> dict[str, Any]:
    """All figures of a run: times by name in seconds, rates a second, counts."""
    done = [outcome for outcome in outcomes if not outcome.error]
    seconds = max((o.end for o in outcomes), default=0) - min((o.sent for o in outcomes), default=0)
    gaps = [b - a for outcome in done for a, b in pairwise(outcome.pieces)]
    times = {
        "ttft": [value for outcome in done if (value := ttft(outcome)) is not None],
        "tpot": [value for outcome in done if (value := tpot(outcome)) is not None],
        "itl": gaps,
        "e2e": [e2e(outcome) for outcome in done],
    }
    num_good = sum(is_good(outcome, slo) for outcome in outcomes)
    num_prompt, num_output = sum(o.num_prompt for o in done), sum(o.num_output for o in done)
    per_second = 1 / seconds if seconds > 0 else 0.0
    return {
        "requests": len(outcomes),
        "completed": len(done),
        "errors": errors(outcomes),
        "seconds": seconds,
        "prompt_tokens": num_prompt,
        "output_tokens": num_output,
        "requests_per_second": len(done) * per_second,
        "output_tokens_per_second": num_output * per_second,
        "good": num_good,
        "goodput": num_good * per_second,
        "slo": dict(slo),
        "late_seconds": max((o.sent - o.due for o in outcomes), default=0.0),  # the client's own delay
        "times": {name: spread(values) for name, values in times.items()},
    }


def journal(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """A record a request, for the result file."""
    return [
        {
            "due": o.due,
            "sent": o.sent,
            "end": o.end,
            "prompt_tokens": o.num_prompt,
            "output_tokens": o.num_output,
            "error": o.error,
            **{name: None if o.error else measure(o) for name, measure in BOUNDED.items()},
        }
        for o in outcomes
    ]

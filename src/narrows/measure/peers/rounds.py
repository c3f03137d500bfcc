"""Measuring systems round by round, and what the rounds say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

from narrows.measure.noise import NOISY_CORES, cores_of_others, wait_for_quiet
from narrows.measure.peers.cases import Case
from narrows.measure.peers.systems import Row, System
from narrows.measure.provenance import without_paths
from narrows.measure.samples import Samples


def run_rounds(
    systems: Sequence[System], cases: Sequence[Case], rounds: int, *, wait: float, note: Callable[[str], None]
) -> tuple[list[Row], dict[str, str]]:
    """A row per round, system and case; and why what failed did, by system and case.

    `wait` is how many seconds to wait for a quiet machine before each process; `note` is told what was measured. What
    fails once is not tried again.
    """
    rows: list[Row] = []
    failed: dict[str, str] = {}
    turns = [([case], system) for case in cases for system in systems if not system.slow_start]
    turns += [(list(cases), system) for system in systems if system.slow_start]
    for turn in range(rounds):
        for group, system in turns:
            name = f"{system.name}: {', '.join(case.name for case in group)}"
            if name in failed:
                continue
            wait_for_quiet(wait)
            try:
                measured, others = cores_of_others(partial(system.measure, group))
            except (OSError, RuntimeError) as error:
                failed[name] = without_paths(str(error))
                note(f"round {turn + 1}: {name}: {failed[name]}")
                continue
            noisy = others > NOISY_CORES
            rows += [
                {"round": turn, "system": system.name, "others": others, "noisy": noisy, **row} for row in measured
            ]
            for row in measured:
                speed = f"{row['median']:.4g} tokens/s, others {others:.2f} cores{' (noisy)' * noisy}"
                note(f"round {turn + 1}: {system.name} {row['case']}: {speed}")
    return rows, failed


def middle(rows: Sequence[Row]) -> Samples:
    """The medians of the quiet rows; of all where none is quiet."""
    return Samples(tuple(row["median"] for row in [row for row in rows if not row["noisy"]] or rows))


def summary(systems: Sequence[System], cases: Sequence[Case], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row per case and system: the median and range of the rounds' medians, and of the ratios paired by round."""
    found = {(row["case"], row["system"], row["round"]): row for row in rows}
    lines = []
    for case, system in product(cases, systems):
        mine = [row for row in rows if (row["case"], row["system"]) == (case.name, system.name)]
        if not mine:
            continue
        line = {"case": case.name, "system": system.name, "tokens_per_second": middle(mine).json()}
        line |= {"rounds": len(mine), "noisy": sum(row["noisy"] for row in mine)}
        line["weights"] = " or ".join(dict.fromkeys(row["weights"] for row in mine))
        if "bytes_per_token" in mine[0]:
            line["bytes_per_token"] = mine[0]["bytes_per_token"]
            line |= {key: median(r[key] for r in mine) for key in ("bandwidth_gigabytes", "bandwidth_share")}
        paired = [
            {"median": base["median"] / row["median"], "noisy": row["noisy"] or base["noisy"]}
            for row in mine
            if (base := found.get((case.name, system.beside or "", row["round"])))
        ]
        if paired:
            line |= {"narrows_ratio": middle(paired).json(), "noisy_ratio": all(row["noisy"] for row in paired)}
        lines.append(line)
    return lines

"""Quality against bytes per token: variants of one model, made and measured alike, and which of them none beats.

A plan is a TOML file. Every variant is what the words of `narrows compress` make of the model, or a stack; `each` gives
lists for names in braces, and stands for one variant per combination:

    model = "smollm2"
    measure = "kl:text=own,chunks=16"

    [[variant]]
    name = "int{bits}"
    stack = "weights=int{bits}"
    each = { bits = [8, 4] }

    [[variant]]
    name = "2:4 int8, {source}"
    compress = "--pattern 2:4 --bits 8 --calibrate {source} --text {data}/book.txt --seed {seed}"
    stack = "weights=sparse"
    each = { source = ["generated", "text"], seed = [0, 1, 2] }

Variants of one name differ by seed or the like: their spread is what a difference between names has to exceed.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from narrows.measure.provenance import without_paths

KEYS = {"name", "stack", "compress", "each"}


class PlanError(ValueError):
    """A plan that cannot be carried out; the message names the variant and the key."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One model to measure: made by `compress` words, run by `stack`."""

    name: str
    stack: str = ""
    compress: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    model: str
    measure: str
    variants: tuple[Variant, ...]

    @classmethod
    def read(cls, path: Path, data: Path | None = None) -> Plan:
        """`data` is what ``{data}`` stands for. Raises PlanError."""
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PlanError(f"{path} cannot be read as TOML: {error}") from error
        if unknown := set(table) - {"model", "measure", "variant"}:
            raise PlanError(f"{path}: no key {min(unknown)!r}; there are model, measure and [[variant]]")
        for key in ("model", "measure"):
            if not isinstance(table.get(key), str):
                raise PlanError(f"{path}: {key} must be given as a text")
        entries = table.get("variant")
        if not isinstance(entries, list) or not entries:
            raise PlanError(f"{path}: there is no [[variant]]")
        variants = [v for i, entry in enumerate(entries, 1) for v in _variants(f"{path}, variant {i}", entry, data)]
        if len({(v.stack, v.compress) for v in variants}) < len(variants):
            raise PlanError(f"{path}: two variants are the same")
        return cls(table["model"], table["measure"], tuple(variants))

    def result(self, variant: Variant) -> str:
        """Name of a variant's result in the folder of the work, by all that it depends on."""
        return f"{_key(self.model, self.measure, variant.stack, variant.compress)}.json"

    def artifact(self, variant: Variant) -> str:
        """Name of the model that a variant's words of `narrows compress` make."""
        return _key(self.model, variant.compress)


def _key(*what: Any) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


def _variants(where: str, entry: Any, data: Path | None) -> Iterator[Variant]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise PlanError(f"{where}: name must be given as a text")
    if unknown := set(entry) - KEYS:
        raise PlanError(f"{where}: no key {min(unknown)!r}; there are {', '.join(sorted(KEYS))}")
    each = entry.get("each", {})
    if not isinstance(each, dict) or not all(isinstance(values, list) and values for values in each.values()):
        raise PlanError(f"{where}: each must give a list for each name")
    for values in product(*each.values()):
        given = dict(zip(each, values, strict=True))
        if data is not None:
            given["data"] = shlex.quote(str(data))
        try:
            name, stack, words = (str(entry.get(key, "")).format(**given) for key in ("name", "stack", "compress"))
        except KeyError as error:
            hint = ": give --data" if error.args == ("data",) else " in each"
            raise PlanError(f"{where}: {{{error.args[0]}}} has no value{hint}") from None
        except (ValueError, IndexError) as error:
            raise PlanError(f"{where}: {error}") from None
        yield Variant(name, stack, tuple(shlex.split(words)))


def run(plan: Plan, work: Path, options: list[str], eval_options: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each variant: its name, what it is, bytes per token and figures. What `work` holds is not made again.

    `options` go to `narrows compress` and `narrows eval`, `eval_options` to the latter. Raises PlanError when one
    fails, naming the variant.
    """
    work.mkdir(parents=True, exist_ok=True)
    inputs = work / "inputs"  # of calibrations that several variants have
    for i, variant in enumerate(plan.variants, 1):
        result, artifact = work / plan.result(variant), work / plan.artifact(variant)
        if not result.exists():
            if variant.compress and not artifact.exists():
                where = ["--out", str(artifact), "--inputs", str(inputs)]
                _narrows(variant, "compress", plan.model, *variant.compress, *where, *options)
            model = str(artifact) if variant.compress else plan.model
            stack = ["--stack", variant.stack] if variant.stack else []
            measure = ["--measure", plan.measure, *stack, *options, *eval_options]
            records = str(work / "records.jsonl")  # of the unmodified model too, which every variant is compared with
            _narrows(variant, "eval", model, *measure, "--out", str(result), "--records", records)
        if not any(v.compress == variant.compress for v in plan.variants[i:]):
            shutil.rmtree(artifact, ignore_errors=True)
        found = json.loads(result.read_text())
        yield {
            "name": variant.name,
            "stack": variant.stack,
            "compress": without_paths(shlex.join(variant.compress)),
            "bytes_per_token": found["bytes_per_token"]["candidate"],
            "baseline_bytes_per_token": found["bytes_per_token"]["baseline"],
            "metrics": found["metrics"],
        }
    shutil.rmtree(inputs, ignore_errors=True)


def _narrows(variant: Variant, *words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "narrows", *words], stdout=subprocess.DEVNULL)
    if done.returncode:
        raise PlanError(f"variant {variant.name!r}: narrows {words[0]} ended with code {done.returncode}")


def points(rows: list[dict[str, Any]], measure: str, metric: str) -> list[dict[str, Any]]:
    """By name: mean bytes per token, mean, least and largest value, the interval of a value that stands alone, and what
    beats it, or None on the frontier.

    A name beats another when it has no more bytes and as good a value, one of the two being better. Of several on the
    frontier that do, the one with the fewest bytes is told.
    """
    groups: dict[str, list[tuple[float, float, list[float] | None]]] = {}
    better = "lower"
    for row in rows:
        for m in row["metrics"]:
            if (m["measure"], m["metric"]) == (measure, metric):
                better = m["better"]
                groups.setdefault(row["name"], []).append((row["bytes_per_token"], m["value"], m.get("interval")))
    found = [
        {
            "name": name,
            "runs": len(runs),
            "bytes_per_token": mean(size for size, _, _ in runs),
            "value": mean(value for _, value, _ in runs),
            "min": min(value for _, value, _ in runs),
            "max": max(value for _, value, _ in runs),
            "interval": runs[0][2] if len(runs) == 1 else None,
        }
        for name, runs in groups.items()
    ]
    sign = 1 if better == "lower" else -1
    costs = [(p["bytes_per_token"], sign * p["value"]) for p in found]
    order = sorted(zip(costs, found, strict=True), key=lambda pair: pair[0])  # the first that beats is on the frontier
    for p, own in zip(found, costs, strict=True):
        p["beaten_by"] = next((q["name"] for c, q in order if c[0] <= own[0] and c[1] <= own[1] and c != own), None)
    return found

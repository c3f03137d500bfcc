"""The honesty rule: no speed of a lossy stack without its quality, no quality without its bytes per token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from narrows.checkpoints.compressed import is_compressed
from narrows.measure.provenance import describe_model
from narrows.stack import Stack
from narrows.weights import OWN

SHOWN = 4  # figures beside a speed


class HonestyError(ValueError):
    """A figure that may not be shown alone; the message names what is missing and the command that makes it."""


def quality_of(stack: Stack, model: Path, qualities: Sequence[Path] | None) -> list[dict[str, Any]]:
    """The key figures to show beside a speed of `stack`: none for a lossless one of a model that is not compressed.

    A lossy stack needs one of `qualities`, results of ``narrows eval``, for the same model file and the same lossy
    parts. Raises HonestyError when there is none, or it is another's, or has no bytes per token.
    """
    if stack.lossless and not is_compressed(model):
        return []
    make = f'narrows eval {model.name} --stack "{stack}" --out FILE'
    if not qualities:
        what = "a compressed model" if is_compressed(model) else stack
        raise HonestyError(f"{what} is lossy: its speed is shown beside its quality only; {make}, then --quality FILE")
    refusal = None
    for quality in qualities:
        try:
            return _figures(stack, model, quality, make)
        except HonestyError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def _figures(stack: Stack, model: Path, quality: Path, make: str) -> list[dict[str, Any]]:
    try:
        result = json.loads(quality.read_text())
        sha256, line, metrics = result["provenance"]["model"]["sha256"], result["stack"], result["metrics"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HonestyError(f"--quality {quality}: not a result of `narrows eval` ({error}); {make}") from None
    if _lossy_parts(Stack.parse(line)) != _lossy_parts(stack):
        raise HonestyError(f"--quality {quality} is of the stack {line}, not of {stack}; {make}")
    if sha256 != describe_model(model)["sha256"]:
        raise HonestyError(f"--quality {quality} is of another model file; {make}")
    check_quality(result)
    return metrics


def check_quality(result: dict[str, Any]) -> None:
    """Raises HonestyError for a quality result without the bytes a token costs, candidate and baseline."""
    size = result.get("bytes_per_token")
    values = size.values() if isinstance(size, dict) else [size]
    if not all(isinstance(value, int | float) and value > 0 for value in values):
        raise HonestyError("a quality without bytes per token is not a result: measure it again with `narrows eval`")


def line(metrics: list[dict[str, Any]]) -> str:
    """The key figures in one line."""
    shown = (f"{m['measure']} {m['metric']} {m['value']:.4g}" for m in metrics[:SHOWN])
    return f"quality: {', '.join(shown)}"


def _lossy_parts(stack: Stack) -> str:
    """The stack without what changes no output.

    That is its scheduler, drafts verified without loss, and how a compressed model's own weights are read.
    """
    draft = None if stack.verify.lossless else stack.draft
    verify = Stack().verify if stack.verify.lossless else stack.verify
    weights = "auto" if stack.weights in OWN else stack.weights
    plain = replace(stack, weights=weights, scheduler=Stack().scheduler, pace=Stack().pace)
    return str(replace(plain, draft=draft, verify=verify))

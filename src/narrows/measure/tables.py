"""Markdown of figures: tables, and values with what they range over."""

from __future__ import annotations

from typing import Any


def table(heads: list[str], rows: list[list[str]]) -> str:
    bar = r"\|"  # as Markdown takes it for text
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', bar) for cell in line)} |\n" for line in lines)


def spread(value: dict[str, float]) -> str:
    return "{median:.4g} ({min:.4g}..{max:.4g})".format(**value)


def ratio(value: dict[str, float]) -> str:
    return "{median:.2f}x ({min:.2f}..{max:.2f})".format(**value)


def estimate(value: dict[str, Any]) -> str:
    bounds = value.get("interval")
    return f"{value['value']:.4g}" + (f" [{bounds[0]:.4g}, {bounds[1]:.4g}]" if bounds else "")


def source(facts: dict[str, Any]) -> str:
    return f"`{facts['command']}`, commit {facts['commit']}."

"""Two results of one kind, row by row: how many times as fast the second is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KEYS = {  # what names a row, by kind of result
    "bandwidth": ("threads",),
    "decode": ("threads", "stack", "context", "batch"),
    "prefill": ("threads", "stack", "tokens"),
    "peers": ("case", "system"),
}
FACTS = (("cpu",), ("isa",), ("threads",), ("model", "sha256"))  # of the provenance; a ratio across them says little


class CompareError(ValueError):
    """Two files that cannot be compared; the message names the file and what does not match."""


def read(path: Path) -> dict[str, Any]:
    """A result file. Raises CompareError."""
    try:
        result = json.loads(path.read_text())
        if result["kind"] not in KEYS or not result["rows"]:
            raise CompareError(f"{path} is of kind {result['kind']!r}; compare takes {', '.join(KEYS)}")
        for row in result["rows"]:
            _name(result["kind"], row)
            _speed(row)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CompareError):
            raise
        raise CompareError(f"{path} is not a result of `narrows bench` ({error})") from None
    return result


def compare(a: dict[str, Any], b: dict[str, Any], name_a: str = "A", name_b: str = "B") -> dict[str, Any]:
    """Rows with both medians and the ratio b / a; its range goes from b's least over a's most to the reverse.

    Raises CompareError when kinds or rows do not match. `warnings` say what else differs.
    """
    if a["kind"] != b["kind"]:
        raise CompareError(f"{name_a} is of kind {a['kind']}, {name_b} of kind {b['kind']}")
    kind = a["kind"]
    ours, theirs = ({_name(kind, row): row for row in result["rows"]} for result in (a, b))
    for name, mine, other in ((name_a, ours, theirs), (name_b, theirs, ours)):
        if alone := [row for row in mine if row not in other]:
            raise CompareError(f"only {name} has {_words(kind, alone[0])}; both need the same rows")
    rows = []
    for name, row in ours.items():
        old, new = _speed(row), _speed(theirs[name])
        ratio = {
            "median": new["median"] / old["median"],
            "min": new["min"] / old["max"],
            "max": new["max"] / old["min"],
        }
        noisy = bool(row.get("noisy") or theirs[name].get("noisy"))
        rows.append(dict(zip(KEYS[kind], name, strict=True)) | {"a": old, "b": new, "ratio": ratio, "noisy": noisy})
    warnings = [_differs(fact, a, b) for fact in FACTS if _fact(fact, a) != _fact(fact, b)]
    warnings += [
        f"{what} differs: {a.get(what)} and {b.get(what)}"
        for what in ("stack", "settings")
        if a.get(what) != b.get(what)
    ]
    if noisy := sum(row["noisy"] for row in rows):
        warnings.append(f"others used the machine during {noisy} of {len(rows)} rows")
    return {"kind": kind, "a": name_a, "b": name_b, "rows": rows, "warnings": warnings}


def show(compared: dict[str, Any]) -> None:
    """The comparison as a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{compared['kind']}: {compared['b']} over {compared['a']}")
    keys = KEYS[compared["kind"]]
    for heading in (*keys, compared["a"], compared["b"], "ratio", "noisy"):
        table.add_column(heading, justify="right")
    for row in compared["rows"]:
        ratio = "{median:.3f}x ({min:.3f}..{max:.3f})".format(**row["ratio"])
        speeds = (f"{row[side]['median']:.4g}" for side in ("a", "b"))
        table.add_row(*(str(row[key]) for key in keys), *speeds, ratio, "noisy" if row["noisy"] else "")
    Console().print(table)


def _name(kind: str, row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key, "") if key == "stack" else row[key] for key in KEYS[kind])  # given when there are several


def _words(kind: str, name: tuple[Any, ...]) -> str:
    return ", ".join(f"{key} {value}" for key, value in zip(KEYS[kind], name, strict=True) if value != "")


def _speed(row: dict[str, Any]) -> dict[str, float]:
    speed = row.get("tokens_per_second") or row["gigabytes_per_second"]
    return {key: speed[key] for key in ("median", "min", "max")}


def _fact(path: tuple[str, ...], result: dict[str, Any]) -> Any:
    value: Any = result.get("provenance", {})
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _differs(fact: tuple[str, ...], a: dict[str, Any], b: dict[str, Any]) -> str:
    return f"{' '.join(fact)} differs: {_fact(fact, a)} and {_fact(fact, b)}"

"""What is measured with every system: decoding, reading a prompt, and requests that decode together."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement, by a name such as ``decode-4k``."""

    name: str
    context: int  # tokens read before decoding; all that a prefill reads
    batch: int = 1
    steps: int = 0  # tokens that each request decodes; a prefill decodes none


DEFAULT = "decode-0,decode-4k,prefill-512,prefill-4k,batch-8,batch-16"
MAX = {"decode": 32768, "prefill": 32768, "batch": 64}


def parse_cases(text: str) -> list[Case]:
    """Cases from ``decode-0,prefill-4k,batch-8``. Raises ValueError naming the one that is none."""
    return [_parse(name.strip()) for name in dict.fromkeys(text.split(","))]


def _parse(name: str) -> Case:
    match = re.fullmatch(r"(decode|prefill|batch)-(\d{1,6})(k?)", name)
    kind, count = (match[1], int(match[2]) * (1024 if match[3] else 1)) if match else ("", 0)
    if not match or count > MAX[kind] or (count < 1 and kind != "decode"):
        raise ValueError(
            f"--cases has {name[:40]!r}; a case is decode-CONTEXT, prefill-TOKENS (each up to 32k) or batch-REQUESTS "
            "(up to 64), e.g. decode-4k"
        )
    if kind == "batch":
        return Case(name, 16, batch=count, steps=32)
    return Case(name, count, steps=0 if kind == "prefill" else 64 if count < 512 else 32)

"""Weight formats by name, and the packed matrix. native/include/narrows/format.h describes its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

from .. import _native

U8 = npt.NDArray[np.uint8]


class WeightError(ValueError):
    """Weights that cannot be loaded as asked; the message names the tensor or setting, and the fix."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a weight is stored: ``s*(q - 2^(bits-1))``, or ``s*q + m`` with a minimum; or as a float when bits is 0."""

    bits: int = 0  # 2, 3, 4, 5, 6 or 8; 0 for a float format
    group: int = 0  # columns sharing a scale: 16, 32 or 64
    minimum: bool = False
    two_level: bool = False  # int8 scales under a float16 super scale per 256 columns; only GGUF files bring these
    type: str = ""  # "f32" | "f16" | "bf16"; "" for an integer format
    sparse: bool = False  # only kept weights are stored; symmetric integer formats and bf16, and not for embeddings

    def packed_bytes(self, rows: int, cols: int) -> int:
        """Bytes of a packed matrix [rows, cols] in this format, unless it is sparse."""
        return _native.packed_bytes(self, rows, cols)

    def __str__(self) -> str:
        """The name that `parse_format` reads, but for ":super" (two levels) and ":sparse", which it refuses."""
        name = self.type or f"int{self.bits}:g{self.group}"
        return name + ":min" * self.minimum + ":super" * self.two_level + ":sparse" * self.sparse


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A matrix [rows, cols] in packed form."""

    format: Format
    rows: int
    cols: int
    data: U8  # [format.packed_bytes(rows, cols)], 64-byte aligned


FORMATS: dict[str, Format] = {
    **{name: Format(type=name) for name in ("f32", "f16", "bf16")},
    **{f"int{bits}": Format(bits, 32) for bits in (8, 6, 5, 4, 3, 2)},
}
GROUPS = (16, 32, 64)
OWN = ("auto", "sparse", "dense")  # the model's own weights; the last two choose how those of a compressed one are read


def parse_format(text: str) -> Format:
    """The format that a name such as ``bf16``, ``int4``, ``int4:g64`` or ``int4:g32:min`` asks for.

    Integer formats take a group size (32 when not given) and ``min``. Raises WeightError, naming the near miss.
    """
    name, *settings = text.split(":")
    if name not in FORMATS:
        near = get_close_matches(name, FORMATS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        if name in OWN[1:]:
            raise WeightError(f"weights={name} is a way to read a compressed model; use auto, or {', '.join(FORMATS)}")
        raise WeightError(f"unknown weight format {name[:40]!r}{hint}; formats are auto, {', '.join(FORMATS)}")
    base = FORMATS[name]
    known = {"min": "min"} | {f"g{g}": "group" for g in GROUPS} if base.bits else {}
    kinds = [known.get(s) for s in settings]
    if None in kinds or len(set(kinds)) != len(kinds):
        takes = f"one of {', '.join(f'g{g}' for g in GROUPS)}, and min" if base.bits else "no settings"
        raise WeightError(f"weight format {text[:40]!r}: {name} takes {takes}")
    groups = [int(s[1:]) for s, kind in zip(settings, kinds, strict=True) if kind == "group"]
    return Format(base.bits, groups[0] if groups else base.group, "min" in settings, False, base.type)

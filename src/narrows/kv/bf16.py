"""Keys and values in bfloat16: the reference every other codec is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class BF16:
    """Two bytes a value."""

    lossless: ClassVar[bool] = True

    @property
    def tag(self) -> str:
        return "bf16"

    def bytes_per_token(self, num_kv_heads: int, head_dim: int) -> int:
        return 2 * num_kv_heads * head_dim * 2

"""The seam of KV codecs: in what form keys and values are kept."""

from __future__ import annotations

from typing import ClassVar, Protocol


class KvCodec(Protocol):
    """A form of storage. Two codecs of different `tag` never read each other's pages."""

    lossless: ClassVar[bool]

    @property
    def tag(self) -> str:
        """Names the stored format and every setting that changes a stored byte: part of the prefix cache's keys."""
        ...

    def bytes_per_token(self, num_kv_heads: int, head_dim: int) -> int:
        """Bytes of one token's keys and values in one layer."""
        ...

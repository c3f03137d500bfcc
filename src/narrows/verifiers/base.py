"""The seam of verifiers. Plain sampling is the verification of a draft of length zero."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from ..types import F32, Draft, Verdict


class Rng(Protocol):
    """The random numbers of one request, from the position of the first token to be chosen."""

    def uniform(self, offset: int, stream: int = 0) -> float:
        """In [0, 1); the same for the same request, position and stream, whatever else happens."""
        ...


class Verifier(Protocol):
    lossless: ClassVar[bool]  # the tokens are distributed as without a draft
    wants_probs: ClassVar[bool]  # needs Draft.probs of drafts that were drawn by chance

    def verify(self, logits: F32, draft: Draft | None, params: Any, rng: Rng) -> Verdict:
        """logits [k+1, V], penalties applied; row i follows draft token i-1. Returns at least one token."""
        ...

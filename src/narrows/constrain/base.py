"""What the engine knows of constraints: a matcher for each request, which it asks and tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..types import F32


class Matcher(Protocol):
    """Where one request's output stands in its grammar: a function of the tokens accepted so far."""

    def mask(self, logits: F32, paths: Sequence[Sequence[int]]) -> F32:
        """A copy of logits [k+1, V] with -inf for what may not come next; row i follows the drafted tokens paths[i].

        A path stands behind the one that it extends, the empty one first. Rows behind a drafted token that the grammar
        forbids are left as they are: no verifier gets there.
        """
        ...

    def accept(self, token: int) -> str | None:
        """Takes the next token of the output. Returns why the output ends here: "stop" when nothing may follow,
        "abort" when the grammar cannot be followed further, None when it goes on."""
        ...


class Grammars(Protocol):
    """The grammars of one vocabulary."""

    def matcher(self, outputs: Mapping[str, Any]) -> Matcher:
        """A matcher at the start of `SamplingParams.structured_outputs`; raises ParamError."""
        ...

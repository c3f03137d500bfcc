"""The seam of drafters. They guess how requests go on; a wrong guess costs time and changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..types import F32, I32, Cursor, Draft, Request


@dataclass(frozen=True, slots=True)
class Source:
    """A model to load for a drafter: the "model" or "head" of a name, or the target "self"."""

    kind: str
    name: str = ""
    weights: str = "auto"  # format to read it in
    skip: tuple[int, ...] = ()  # layers left out


class Reader(Protocol):
    """A loaded draft model, and the cursors it has on requests."""

    @property
    def ids(self) -> I32 | None: ...  # the tokens that logits are of; None: all

    def cursor(self, request: Request) -> Cursor: ...
    def start(self, request: Request, limit: int) -> Cursor: ...
    def reserve(self, request: Request, length: int) -> bool: ...
    def advance(self, items: Sequence[tuple[Request, Sequence[int]]]) -> F32: ...
    def follow(
        self, items: Sequence[tuple[Request, int, int]], ends: Collection[int]
    ) -> list[tuple[list[int], list[float]]]: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is about to choose its next token."""

    request: Request
    max_tokens: int  # to draft, at least 1
    drafted: Draft | None = None  # by earlier stages; the proposal goes on from there

    @property
    def tail(self) -> list[int]:
        """What earlier stages drafted."""
        return [] if self.drafted is None else self.drafted.tokens.tolist()


@dataclass(frozen=True, slots=True)
class Tools:
    """What the engine lends to drafters in a step."""

    readers: Mapping[Source, Reader]  # by the drafter's `sources`
    wants_probs: bool = False  # the verifier needs the distribution that each token was drawn from
    end_ids: Collection[int] = ()  # tokens after which drafting on is pointless
    vocab_size: int = 0  # V, the target's
    state: dict[str, Any] = field(default_factory=dict)  # per part, for what outlives requests


class Drafter(Protocol):
    @property
    def max_drafted(self) -> int:
        """Tokens of the longest proposal."""
        ...

    @property
    def sources(self) -> tuple[Source, ...]:
        """The models to load for it."""
        ...

    def propose(self, asks: Sequence[Ask], tools: Tools) -> list[Draft | None]:
        """A proposal for each, or None where nothing speaks for one.

        State belongs to requests: it is in ``request.state``, under a name of the drafter's, or in a reader's cursor;
        what outlives them is in ``tools.state``.
        """
        ...

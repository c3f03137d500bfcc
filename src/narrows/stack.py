"""A stack: which parts are on, as one line that reads and prints the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from .drafters import DRAFTERS
from .drafters.base import Drafter
from .kv import KV_CODECS
from .kv.base import KvCodec
from .methods import StackError, build, near, show
from .pacers import PACERS
from .pacers.base import Pacer
from .schedulers import SCHEDULERS
from .schedulers.base import Scheduler
from .verifiers import VERIFIERS
from .verifiers.base import Verifier
from .weights import OWN, parse_format

PREFILL = ("same", "dense")
REGISTRIES = {"kv": KV_CODECS, "scheduler": SCHEDULERS, "verify": VERIFIERS, "draft": DRAFTERS, "pace": PACERS}


@dataclass(frozen=True, slots=True)
class Stack:
    """Parts by seam; ``weights`` is the name of a weight format, ``auto`` keeping the model's own.

    ``prefill`` is ``dense`` when prompts are read with the unmodified weights, whatever output is written with.

    ``Stack.parse("weights=int4 scheduler=continuous:budget=256")`` leaves what is not named at its default.
    """

    weights: str = "auto"
    prefill: str = "same"
    kv: KvCodec = field(default_factory=lambda: build("kv", "bf16", KV_CODECS))
    scheduler: Scheduler = field(default_factory=lambda: build("scheduler", "continuous", SCHEDULERS))
    verify: Verifier = field(default_factory=lambda: build("verify", "greedy", VERIFIERS))
    draft: Drafter | None = None
    pace: Pacer = field(default_factory=lambda: build("pace", "goodput", PACERS))

    @classmethod
    def parse(cls, line: str) -> Stack:
        """Raises StackError naming the unknown key, method or setting and the nearest one there is."""
        known = {f.name: None for f in fields(cls)}
        parts = {}
        for word in line.split():
            key, equals, value = word.partition("=")
            if key not in known:
                raise StackError(f"no part {key[:40]!r} in a stack{near(key, known)}; there is {', '.join(known)}")
            if not equals or not value or key in parts:
                raise StackError(f"{key} must be given once, as {key}=value")
            none = key == "draft" and value == "none"
            parts[key] = None if none else build(key, value, REGISTRIES[key]) if key in REGISTRIES else value
        stack = cls(**parts)
        stack.check()
        return stack

    def __str__(self) -> str:
        words = [f"weights={self.weights}", *(["prefill=dense"] if self.prefill == "dense" else [])]
        for key, registry in REGISTRIES.items():
            if self.draft is not None or key not in ("draft", "pace"):
                words.append(f"{key}={show(getattr(self, key), registry)}")
        return " ".join(words)

    @property
    def lossless(self) -> bool:
        """Whether the output is that of the model as its file has it."""
        return self.weights in OWN and self.kv.lossless and self.verify.lossless

    def check(self) -> None:
        """Raises StackError when parts do not go together, in one sentence naming both."""
        if self.weights not in OWN:
            try:
                parse_format(self.weights)
            except ValueError as error:
                raise StackError(str(error)) from None
        if self.prefill not in PREFILL:
            raise StackError(f"prefill={self.prefill[:40]}: it must be {' or '.join(PREFILL)}")
        for key, registry in REGISTRIES.items():
            if getattr(self, key) is not None:
                show(getattr(self, key), registry)

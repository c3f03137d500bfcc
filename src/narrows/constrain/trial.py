"""Tries a grammar out in a process of its own, which can be stopped.

The library bounds its work step by step, but a few hundred bytes of nested repetition or of `allOf` keep it busy for
minutes before the first step. So what could be one of those is compiled and followed a little over an alphabet of
bytes, by a child with a limit on its processor time; what the child survives, this process does as fast.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

from ..sampling import ParamError

MAX_SECONDS = 2  # of processor time, start included
MAX_BYTES = 1 << 30
NUM_STEPS = 64
COSTLY = frozenset(("$ref", "$dynamicRef", "allOf", "oneOf", "pattern", "patternProperties"))


def try_grammar(kind: str, content: Any) -> None:
    """Returns if the grammar is fit for use; raises ParamError if it is wrong, or takes more than it may."""
    if kind == "choice" or (kind == "json" and isinstance(content, dict) and not _costly(content)):
        return  # the work grows with the size, which is bounded
    field = f"structured_outputs.{kind}"
    command = [sys.executable, "-m", __name__]
    try:
        child = subprocess.run(
            command, input=json.dumps([kind, content]), capture_output=True, text=True, timeout=10 * MAX_SECONDS
        )
    except subprocess.TimeoutExpired:
        child = None
    if child is None or child.returncode:
        raise ParamError(field, "is too much work: use fewer nested repetitions, references or allOf")
    if error := json.loads(child.stdout):
        raise ParamError(*error)


def _costly(value: Any) -> bool:
    if isinstance(value, dict):
        return not COSTLY.isdisjoint(value) or any(map(_costly, value.values()))
    return isinstance(value, list) and any(map(_costly, value))


class _Bytes:
    """The smallest vocabulary there is: all bytes, and an end."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [bytes([i]) for i in range(256)] + [b"<end>"]
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _main() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    from llguidance import LLTokenizer, TokenizerWrapper

    from .grammar import compile_grammar

    kind, content = json.load(sys.stdin)
    error = None
    try:
        matcher = compile_grammar(LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=[256]), kind, content)
    except ParamError as refused:
        error = refused.field, refused.message.removeprefix(refused.field + " ")
    else:
        chance = random.Random(0)
        for _ in range(NUM_STEPS):
            bits = int.from_bytes(matcher.compute_bitmask(), "little")
            allowed = [token for token in range(257) if bits >> token & 1]
            if matcher.is_stopped() or not allowed or not matcher.consume_token(chance.choice(allowed)):
                break
    json.dump(error, sys.stdout)


if __name__ == "__main__":
    _main()

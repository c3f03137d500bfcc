"""Grammars by llguidance: compiled once within bounds, then a mask of the vocabulary for each token.

llguidance rather than xgrammar: it has no dependencies, where xgrammar wants torch, transformers and triton; it refuses
the parts of JSON Schema that it cannot keep instead of leaving them out; and it is lazy, so that compiling takes
milliseconds and a limit of work can be set on every step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sampling import ParamError
from ..types import F32
from .grammar import compile_grammar
from .trial import try_grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from ..text import Tokenizer

MAX_COMPILED = 64  # grammars kept, the latest used


class Guidance:
    """The grammars of a vocabulary [V]. Cheap to make: the first use, or `prepare`, imports llguidance and builds.

    `tried` is for grammars that another process has tried before.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, *, tried: bool = False) -> None:
        self._tried = tried
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._vocabulary: LLTokenizer | None = None
        self._compiled = lru_cache(MAX_COMPILED)(self._compile)

    def matcher(self, outputs: Mapping[str, Any]) -> GuidedMatcher:
        """A matcher at the start of `structured_outputs`.

        A new grammar may take seconds; callers that cannot wait ask for a matcher in another thread first. Raises
        ParamError when llguidance is not installed, does not take the grammar, or would have too much work with it.
        """
        ((kind, content),) = outputs.items()
        # JSON, because it keeps the order of properties, which is the order they are generated in
        compiled = self._compiled(kind, json.dumps(content))
        return GuidedMatcher(compiled.deep_copy(), self._vocab_size, self._tokenizer.eos_ids)

    def prepare(self) -> None:
        """Reads the vocabulary now, which takes a second or two, and not with the first constrained request."""
        self._prepared()

    def _compile(self, kind: str, content: str) -> LLMatcher:
        vocabulary, value = self._prepared(), json.loads(content)
        if not self._tried:
            try_grammar(kind, value)
        return compile_grammar(vocabulary, kind, value)

    def _prepared(self) -> LLTokenizer:
        if self._vocabulary is None:
            try:
                from llguidance import LLTokenizer, TokenizerWrapper
            except ImportError:
                hint = "needs llguidance, which is not installed: pip install 'narrows[structured]'"
                raise ParamError("structured_outputs", hint) from None
            if not self._tokenizer.eos_ids:
                raise ParamError("structured_outputs", "cannot be used: the model has no token that ends a text")
            wrapped = TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocab_size))
            self._vocabulary = LLTokenizer(wrapped, eos_token=sorted(self._tokenizer.eos_ids))
        return self._vocabulary


class GuidedMatcher:
    """Where one request stands in its grammar."""

    __slots__ = ("_end_ids", "_matcher", "_vocab_size")

    def __init__(self, matcher: LLMatcher, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._end_ids = end_ids

    def mask(self, logits: F32, paths: Sequence[Sequence[int]]) -> F32:
        """See `Matcher`. Where other masks have left nothing that the grammar allows, all it allows is open."""
        out = logits.copy()
        opened: dict[tuple[int, ...], np.ndarray] = {}  # what may follow each path that the grammar allows
        taken: tuple[int, ...] = ()
        for row, path in zip(out, map(tuple, paths), strict=True):
            if path and (path[:-1] not in opened or not opened[path[:-1]][path[-1]] or path[-1] in self._end_ids):
                continue
            self._move(taken, path)
            taken, allowed = path, self._allowed()
            opened[path] = allowed
            np.putmask(row, ~allowed, -np.inf)
            if not (row > -np.inf).any():
                row[allowed] = 0
        self._move(taken, ())
        return out

    def _move(self, taken: tuple[int, ...], path: tuple[int, ...]) -> None:
        """From behind one path of drafted tokens to behind another."""
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(taken, path, strict=False))))
        if shared < len(taken):
            self._matcher.rollback(len(taken) - shared)
        for token in path[shared:]:
            self._matcher.consume_token(token)

    def accept(self, token: int) -> str | None:
        """See `Matcher`."""
        if not self._matcher.consume_token(token) or self._matcher.is_error():
            return "abort"
        return "stop" if self._matcher.is_stopped() else None

    def _allowed(self) -> np.ndarray:
        """[V] bool; only ends of text once the grammar is complete, or cannot be followed further."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)


class _Vocabulary:
    """A tokenizer as llguidance asks for it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = sorted(tokenizer.special_ids)
        size = min(vocab_size, tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in range(size)]

    def __call__(self, text: str | bytes) -> list[int]:
        text = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, add_special=False, parse_special=False)

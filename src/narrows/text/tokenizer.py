"""Text to token ids and back, the same way for GGUF files and Hugging Face directories."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from narrows.text.errors import TokenizerError
from narrows.text.gguf_vocab import BYTE_CHARS

END_MARKERS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<eos>",
)  # special tokens that end a generation whether or not the checkpoint lists them


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a checkpoint says of its tokens beyond how text is cut.

    ``pieces`` are token strings in id order (None where an id names no text). With ``byte_level`` each character of a
    piece stands for a byte; otherwise ``▁`` is a space and ``<0xNN>`` a byte. ``literal`` pieces stand for themselves.
    """

    pieces: Sequence[str | None]
    byte_level: bool
    special: frozenset[int]  # control tokens: dropped from output with skip_special
    literal: frozenset[int]  # added tokens, control ones included
    bos: int | None = None
    eos: int | None = None  # the one a checkpoint calls its EOS
    ends: frozenset[int] = frozenset()  # every id that ends a generation, that one included
    prefix: tuple[int, ...] = ()  # what encoding a whole text puts before it
    suffix: tuple[int, ...] = ()  # and after it
    space_prefix: bool = False  # encoding adds a space at the front of a text
    num_tokens: int = 0  # at least len(pieces): models may pad their vocabulary


class Tokenizer:
    """Encodes and decodes; safe to share between threads.

    ``bos_id`` is the token that opens a text and ``eos_id`` the one that closes it (or None), ``eos_ids`` every token
    that ends a generation, ``vocab_size`` the number of ids (those without text of their own decode to nothing).
    """

    def __init__(self, backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._lock = threading.Lock()  # parse_special is a switch of the shared backend
        self._bytes: dict[int, bytes] = {}
        self.bos_id = vocabulary.bos
        self.eos_id = vocabulary.eos
        self.eos_ids = vocabulary.ends
        self.special_ids = vocabulary.special
        self.vocab_size = max(vocabulary.num_tokens, len(vocabulary.pieces))

    def first_difference(self, other: Tokenizer) -> int | None:
        """The lowest id that stands for different text in the two vocabularies; None when there is no such id."""
        pairs = zip(self._vocabulary.pieces, other._vocabulary.pieces, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b and None not in (a, b)), None)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of ``text``.

        ``add_special`` adds what the model wants around a whole text; a text that already opens with the BOS marker
        does not get a second one. With ``parse_special`` off, special markers in the text are plain characters.
        Raises TokenizerError for text that is not valid Unicode.
        """
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            try:
                ids = self._backend.encode(text, add_special_tokens=False).ids
            except (TypeError, UnicodeEncodeError) as error:
                raise TokenizerError(_why_not_text(text)) from error
        return self._surround(ids) if add_special else ids

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of a whole text given in parts, each with whether special markers in it are special tokens."""
        each = (self.encode(text, add_special=False, parse_special=special) for text, special in parts)
        return self._surround([token for ids in each for token in ids])

    def _surround(self, ids: list[int]) -> list[int]:
        prefix, suffix = self._vocabulary.prefix, self._vocabulary.suffix
        if prefix and self.bos_id in prefix and ids[:1] == [self.bos_id]:
            prefix = ()
        return [*prefix, *ids, *suffix]

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        The space that encoding puts at the front of a text (some SentencePiece models) is taken off again after BOS,
        where a text begins; anywhere else it belongs to the text, so continuations join as they are.
        """
        return b"".join(self.stream_bytes(ids, skip_special)).decode("utf-8", "replace")

    def stream_bytes(self, ids: Iterable[int], skip_special: bool, previous: int | None = None) -> Iterable[bytes]:
        """The bytes each of ``ids`` adds to the text, given the id before the first."""
        for token in ids:
            piece = b"" if skip_special and token in self.special_ids else self.token_bytes(token)
            if self._vocabulary.space_prefix and previous is not None and previous == self.bos_id:
                piece = piece.removeprefix(b" ")
            previous = token
            yield piece

    def token_bytes(self, token: int) -> bytes:
        """Bytes of one token; raises TokenizerError for an id outside 0..vocab_size - 1."""
        piece = self._bytes.get(token)
        if piece is None:
            if not 0 <= token < self.vocab_size:
                raise TokenizerError(f"token id {token} is outside 0..{self.vocab_size - 1}")
            piece = self._bytes[token] = self._spell(token)
        return piece

    def token_text(self, token: int) -> str:
        """The piece as the vocabulary writes it ("" for an id without text); for special tokens, the marker."""
        pieces = self._vocabulary.pieces
        return (pieces[token] or "") if 0 <= token < len(pieces) else ""

    def _spell(self, token: int) -> bytes:
        piece = self.token_text(token)
        if token in self._vocabulary.literal:
            return piece.encode()
        if self._vocabulary.byte_level:
            try:
                return bytes(map(BYTE_CHARS.__getitem__, piece))
            except KeyError:  # a token outside the byte alphabet stands for itself
                return piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            try:
                return bytes.fromhex(piece[3:5])
            except ValueError:
                pass
        return piece.replace("▁", " ").encode()


def end_ids(pieces: Sequence[str | None], special: Iterable[int], declared: Iterable[Any]) -> frozenset[int]:
    """Ids that end a generation: those a checkpoint declares, and special tokens known to."""
    found = {i for i in declared if isinstance(i, int) and 0 <= i < len(pieces)}
    return frozenset(found | {i for i in special if pieces[i] in END_MARKERS})


def _why_not_text(text: Any) -> str:
    if not isinstance(text, str):
        return f"text to encode must be a str, not {type(text).__name__}"
    at = next((i for i, c in enumerate(text) if 0xD800 <= ord(c) <= 0xDFFF), 0)
    return f"text is not valid Unicode: a lone surrogate at character {at}"

"""Text as it is generated: whole characters only, and never a piece of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from narrows.text.tokenizer import Tokenizer

MAX_STOP_CHARS = 1024


class Detokenizer:
    """Turns ids into text as they come: all ``push`` results and ``finish`` joined equal ``decode`` of all the ids.

    Bytes that may still become a character are held; bytes that cannot be UTF-8 come out as U+FFFD at once.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._previous: int | None = None
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Text that is certain after these ids; raises TokenizerError for an id outside the vocabulary."""
        ids = list(ids)
        data = b"".join(self._tokenizer.stream_bytes(ids, self._skip_special, self._previous))
        if ids:
            self._previous = ids[-1]
        return self._utf8.decode(data)

    def finish(self) -> str:
        """What a cut character leaves (U+FFFD), once; "" when nothing was held."""
        return self._utf8.decode(b"", final=True)


class StopStrings:
    """Passes text on up to the first stop string.

    The stop that is complete first wins, and of those complete at the same character the longest; so the outcome does
    not depend on how the text was cut into pushes. No character of the match, nor after it, is emitted; text that may
    still become a stop is held, everything else goes out at once.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_CHARS:
                raise ValueError(f"stop must be strings of 1 to {MAX_STOP_CHARS} characters")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """(text to emit now, the stop string that matched or None); after a match, nothing more is emitted."""
        if self._matched is not None:
            return "", self._matched
        text = self._held + text
        found = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, length, self._matched = min(found)
            self._held = ""
            return text[: end + length], self._matched
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def finish(self) -> str:
        """The text still held, at the end of a generation; "" after a match."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of ``stop`` that ends ``text``."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0

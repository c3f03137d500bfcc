"""Text to hide needles in: from files, or made by rule."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

from .datasets import read_text


def _words(text: str) -> list[str]:
    return text.split()


ADJECTIVES = _words("amber brisk calm dusty eager faded gentle hollow icy jolly keen lofty mellow narrow olive pale")
NOUNS = _words(
    "falcon harbor lantern meadow orchard pebble quarry river saddle temple valley willow anchor bridge candle"
)
_PEOPLE = _words("baker carpenter doctor farmer gardener judge librarian miller painter sailor tailor weaver")
_VERBS = _words("carried followed repaired noticed borrowed described painted measured returned forgot sold praised")
_THINGS = _words("basket chair clock coat drum kettle ladder letter map mirror rope spoon table wagon")
_PLACES = _words("market station church garden kitchen library mill forest square tavern workshop shore")
_TIMES = ("at dawn", "in the evening", "before the rain", "after supper", "on Sunday", "in early spring", "as usual")


def from_folder(folder: Path) -> str | None:
    """The first of a folder's .txt and .txt.gz files, in order of name; None when there is none."""
    paths = sorted([*folder.glob("*.txt"), *folder.glob("*.txt.gz")])
    return read_text(paths[0]) if paths else None


def sentences(text: str | None) -> Iterator[str]:
    """Sentences of a text, spaces made single; of one made by rule when there is none. Made ones never end."""
    if text is not None:
        for match in re.finditer(r"\S.*?[.!?][\"'\u201d\u2019)]*(?=\s|\Z)", text, re.DOTALL):
            if len(match.group()) <= 2000:
                yield " ".join(match.group().split())
        return
    pick = random.Random("filler").choice
    while True:
        who, did, what = pick(_PEOPLE), pick(_VERBS), f"{pick(ADJECTIVES)} {pick(_THINGS)}"
        yield f"The {who} {did} the {what} near the {pick(_PLACES)} {pick(_TIMES)}."

"""Prompts of wanted lengths, made of words: what a server does with them depends on their lengths only."""

from __future__ import annotations

import random
from collections.abc import Iterator

from .arrivals import Arrival

# Short and common, so that most vocabularies have a token for each.
_WORDS = """time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city name team minute idea body back parent face others level office door health
person art war history party result change morning reason research girl guy moment air teacher force"""
WORDS = tuple(_WORDS.split())


class Texts:
    """Words by the number of tokens, as measured: `tokens_per_word`."""

    def __init__(self, seed: int, tokens_per_word: float = 1.0) -> None:
        self._seed, self.tokens_per_word = seed, tokens_per_word

    def prompt(self, arrival: Arrival, number: int) -> str:
        """The prompt of request `number`. Blocks that two arrivals share are the same text; nothing else is.

        A trace may list more or fewer blocks than the length takes; the length counts.
        """
        num_words = self.count(arrival.num_prompt)
        if arrival.blocks is None:
            return " ".join(self._words(f"request {number}", num_words))
        per_block = self.count(arrival.block_tokens)
        words: list[str] = []
        for block in arrival.blocks:
            words += self._words(f"block {block}", min(per_block, num_words - len(words)))
        return " ".join([*words, *self._words(f"request {number}", num_words - len(words))])

    def count(self, num_tokens: int) -> int:
        """Words that make about so many tokens."""
        return max(1, round(num_tokens / self.tokens_per_word))

    def _words(self, name: str, count: int) -> Iterator[str]:
        rng = random.Random(f"{self._seed} {name}")
        yield from rng.choices(WORDS, k=max(0, count))

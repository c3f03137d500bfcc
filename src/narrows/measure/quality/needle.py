"""Facts hidden in a long text, and questions about them, in the manner of RULER (Hsieh et al., arXiv:2404.06654, 3).

* single: one key with its number.
* multikey: four keys, each with its number; one is asked for.
* multivalue: one key with four numbers, all asked for.
* tracking: a number assigned to a variable, that to the next, and so on over four hops; all names are asked for.

The score of an answer is the share of the expected strings that are in it. Prompt and room for the answer together take
`length` tokens of the model's tokenizer at most. The filler of a length is the same for all its samples, so that what
comes before the first needle is read once where the stack has a prefix cache.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from .base import DataError, Item, Metric, Record
from .filler import ADJECTIVES, NOUNS, from_folder, sentences
from .generate import answers, ask, is_chat

if TYPE_CHECKING:
    from narrows import LLM

KINDS = ("single", "multikey", "multivalue", "tracking")
ANSWER = 128  # tokens of room for the answer
MAX_LENGTH = 1 << 20
OPENING = "Read this text. Some facts are hidden in it, and a question about them follows.\n\n"
NUM_VALUES, NUM_HOPS = 4, 4


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt, as token ids, and what must be in the answer. `depth` is None when the facts are spread out."""

    kind: str
    length: int
    depth: float | None
    prompt: list[int]
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Puzzle:
    facts: list[tuple[float, str]]  # depth in the text, 0 to 1; sentence
    question: str
    lead: str  # how an answer begins: what a base model goes on from
    expected: tuple[str, ...]
    depth: float | None = None


@dataclass(frozen=True)
class Needle:
    """Retrieval and tracking at several lengths."""

    lengths: str = "1024+2048+4096+8192"  # tokens, prompt and answer
    kinds: str = "single+multikey+multivalue+tracking"
    samples: int = 4  # of each kind at each length
    limit: int = 0  # items; 0 = all

    joint: ClassVar[bool] = False
    dataset: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        if not all(n.isdecimal() and 256 <= int(n) <= MAX_LENGTH for n in self.lengths.split("+")):
            raise ValueError(f"lengths is {self.lengths!r}; it must be numbers from 256 on, as in 1024+2048")
        if unknown := [kind for kind in self.kinds.split("+") if kind not in KINDS]:
            raise ValueError(f"kinds holds {unknown[0]!r}; there is {'+'.join(KINDS)}")
        if self.samples < 1 or self.limit < 0:
            raise ValueError("samples must be 1 or more, limit 0 or more")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Score and passes of all, and the score of each kind at each length: the cells of a grid."""
        cells = (cell(kind, length) for kind in self._kinds for length in self._lengths)
        return Metric("score", "higher"), Metric("pass", "higher", "pass"), *(Metric(name, "higher") for name in cells)

    @property
    def _lengths(self) -> list[int]:
        return sorted({int(n) for n in self.lengths.split("+")})

    @property
    def _kinds(self) -> list[str]:
        return list(dict.fromkeys(self.kinds.split("+")))

    def quick(self) -> Needle:
        """Two samples of each kind at the two shortest lengths."""
        return replace(self, lengths="+".join(self.lengths.split("+")[:2]), samples=min(self.samples, 2))

    def items(self, data: Path | None, model: LLM) -> list[Item]:
        """Cases by length, then kind; filler from haystack/*.txt[.gz] when there is one, else made by rule."""
        text = from_folder(data / "haystack") if data is not None else None
        items = []
        for length in self._lengths:
            filler = _Filler(model, text, length)
            for kind in self._kinds:
                for i in range(self.samples):
                    if 0 < self.limit <= len(items):
                        return items
                    name = f"needle/{kind}/{length}/{i}"
                    puzzle = _PUZZLES[kind](random.Random(name), (i + 0.5) / self.samples)
                    prompt = filler.prompt(puzzle) if length <= model.max_model_len else []
                    items.append(Item(name, Case(kind, length, puzzle.depth, prompt, puzzle.expected)))
        return items

    def run(self, model: LLM, baseline: LLM | None, items: Sequence[Item]) -> Iterator[Record]:
        """A record per case: id, kind, length, depth, score, pass, answer; or why its length was skipped."""
        fit = []
        for item in items:
            case = item.content
            if case.length <= model.max_model_len:
                fit.append(item)
                continue
            reason = f"the model holds {model.max_model_len} tokens"
            yield {"id": item.id, "kind": case.kind, "length": case.length, "skipped": reason}
        cases: list[Case] = [item.content for item in fit]

        def ended(index: int, text: str) -> bool:
            return score(text, cases[index].expected) == 1

        for index, answer in answers(model, [c.prompt for c in cases], ANSWER, done=ended, at_once=1):
            case = cases[index]
            value = score(answer.text, case.expected)
            yield {
                "id": fit[index].id,
                "kind": case.kind,
                "length": case.length,
                "depth": case.depth,
                "score": value,
                cell(case.kind, case.length): value,
                "pass": value == 1,
                "tokens": len(answer.token_ids),
                "answer": answer.text,
            }


def score(text: str, expected: Sequence[str]) -> float:
    """The share of the expected strings that are in `text`."""
    text = text.replace(",", "")
    return sum(value in text for value in expected) / len(expected)


def cell(kind: str, length: int) -> str:
    """The name of a figure of the grid."""
    return f"{kind}-{length}"


class _Filler:
    """The sentences of one length, and prompts made with them."""

    def __init__(self, model: LLM, text: str | None, length: int) -> None:
        self._model, self._length = model, length
        self._sentences: list[str] = []
        self._counts: list[int] = []  # tokens of each
        total = 0
        for sentence in islice(sentences(text), length):  # a sentence has a token at least
            self._sentences.append(sentence)
            self._counts.append(len(model.tokenizer.encode(" " + sentence, add_special=False)))
            total += self._counts[-1]
            if total >= length:
                return
        raise DataError(f"the haystack holds {total} tokens of sentences; a length of {length} needs as many")

    def prompt(self, puzzle: _Puzzle) -> list[int]:
        """Ids of the longest prompt that leaves room for the answer. Raises DataError when not even the facts fit."""
        room = self._length - ANSWER
        kept = len(self._sentences)
        while kept > 0:
            ids = self._encode(puzzle, kept)
            if len(ids) <= room:
                return ids
            excess = len(ids) - room
            while excess > 0 and kept > 0:
                kept -= 1
                excess -= self._counts[kept]
        raise DataError(
            f"a length of {self._length} tokens has no room for the facts and the answer: give a longer one"
        )

    def _encode(self, puzzle: _Puzzle, kept: int) -> list[int]:
        text = self._sentences[:kept]
        for depth, fact in sorted(puzzle.facts, reverse=True):  # from the back, so that places stay as they are
            text.insert(round(depth * kept), fact)
        body = f"{OPENING}{' '.join(text)}\n\n{puzzle.question}"
        if is_chat(self._model):
            return self._model.chat_template.encode(ask(body))
        return self._model.tokenizer.encode(f"{body}\n{puzzle.lead}")


def _key(rng: random.Random) -> str:
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def _numbers(rng: random.Random, count: int) -> list[str]:
    return [str(n) for n in rng.sample(range(1_000_000, 10_000_000), count)]


def _fact(key: str, number: str) -> str:
    return f"The special number for {key} is {number}."


def _spread(count: int) -> list[float]:
    return [(i + 0.5) / count for i in range(count)]


def _single(rng: random.Random, depth: float, others: int = 0) -> _Puzzle:
    keys = [_key(rng)]
    while len(keys) <= others:
        if (key := _key(rng)) not in keys:
            keys.append(key)
    numbers = _numbers(rng, len(keys))
    facts = [
        (at, _fact(*pair)) for at, pair in zip([depth, *_spread(others)], zip(keys, numbers, strict=True), strict=True)
    ]
    question = f"What is the special number for {keys[0]} that the text gives?"
    return _Puzzle(facts, question, f"The special number for {keys[0]} is", (numbers[0],), depth)


def _multikey(rng: random.Random, depth: float) -> _Puzzle:
    return _single(rng, depth, others=3)


def _multivalue(rng: random.Random, depth: float) -> _Puzzle:
    key, numbers = _key(rng), _numbers(rng, NUM_VALUES)
    facts = [(at, _fact(key, number)) for at, number in zip(_shifted(NUM_VALUES, depth), numbers, strict=True)]
    question = f"What are all the {NUM_VALUES} special numbers for {key} that the text gives? List every one of them."
    return _Puzzle(facts, question, f"The special numbers for {key} are", tuple(numbers))


def _tracking(rng: random.Random, depth: float) -> _Puzzle:
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    names: list[str] = []
    while len(names) <= NUM_HOPS:
        if (name := "".join(rng.choices(letters, k=5))) not in names:
            names.append(name)
    value = str(rng.randrange(10_000, 100_000))
    steps = [f"VAR {names[0]} = {value}.", *(f"VAR {b} = VAR {a}." for a, b in pairwise(names))]
    facts = list(zip(_shifted(len(steps), depth), steps, strict=True))
    question = (
        f"Which {len(names)} variables have the value {value}, directly or through other variables? "
        "Follow the assignments from one to the next and list all names."
    )
    return _Puzzle(facts, question, f"The variables with the value {value} are VAR", tuple(names))


def _shifted(count: int, depth: float) -> list[float]:
    """Depths spread evenly, moved within their share by a sample's `depth`."""
    return [(i + depth) / count for i in range(count)]


_PUZZLES = {"single": _single, "multikey": _multikey, "multivalue": _multivalue, "tracking": _tracking}

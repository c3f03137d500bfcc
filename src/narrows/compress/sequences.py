"""The texts a model is calibrated on: those it writes itself, or a file's.

SparseDecoding, https://arxiv.org/abs/2610.12327: what matters to a model that generates are the inputs its matrices
meet while it generates. Its own samples are kept as tokens, and are read again in one forward later: that gives the
same inputs. They are those of y_1 .. y_(T-1): the last position of the prompt, out of which y_1 comes, is still prompt,
and y_T is never read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..machine import keep
from ..sampling import SamplingParams, child_seed
from .base import CompressError
from .openers import openers

if TYPE_CHECKING:
    from narrows import LLM

SOURCES = ("generated", "text", "prompts+generated")
PROMPT_FIELDS = ("prompt", "turns", "question", "text")  # of an object in a file of prompts; of a list the first
AT_ONCE = 32  # continuations written together: a step reads the weights once for all of them


@dataclass(frozen=True, slots=True)
class Calibration:
    """Where inputs come from, and how many."""

    source: str = "generated"
    tokens: int = 32 << 10  # inputs of each matrix
    length: int = 512  # of a continuation at most, or of a window of text
    temperature: float = 1.0
    seed: int = 0
    prompts: Path | None = None
    text: Path | None = None
    raw: bool = False  # prompts are continued as they are, without the chat template
    part: tuple[int, int] = (0, 1)  # of the prompts: the first, and the step

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise CompressError(f"--calibrate {self.source[:40]!r} is not known; use {', '.join(SOURCES)}")
        if self.tokens < 1:
            raise CompressError(f"--tokens is {self.tokens}; it must be at least 1")
        if self.length < 2:
            raise CompressError(f"--length is {self.length}; it must be at least 2")
        if self.source == "text" and self.text is None:
            raise CompressError("--calibrate text needs --text FILE")


@dataclass(frozen=True, slots=True)
class Sequence:
    """Tokens that are read from an empty context, and the first row whose inputs count."""

    tokens: list[int]
    first: int

    @property
    def num_rows(self) -> int:
        return len(self.tokens) - self.first

    def cut(self, num_rows: int) -> Sequence:
        """The sequence with at most that many rows."""
        return Sequence(self.tokens[: self.first + num_rows], self.first)


def sequences(llm: LLM, plan: Calibration, store: Path, advance: Callable[[int], None]) -> list[Sequence]:
    """Sequences with `plan.tokens` rows in all. What the model writes is kept in `store`, from which a run goes on.

    `advance` is told of rows as they are there. Raises CompressError when there is nothing to calibrate on.
    """
    chosen = []
    for sequence in draw(llm, plan, store):
        chosen.append(sequence)
        advance(sequence.num_rows)
    return chosen


def draw(llm: LLM, plan: Calibration, store: Path, *, anew: bool = False) -> Iterator[Sequence]:
    """The same one by one, as the model writes them. With `anew` it reads prompts whole, though their beginnings are
    in its cache.
    """
    if plan.source == "text":
        found = _windows(llm, plan)
    else:
        found = (_rows(plan, *sample) for sample in _samples(llm, plan, store, anew))
    rest = plan.tokens
    for sequence in found:
        sequence = sequence.cut(rest)
        if sequence.num_rows > 0:
            yield sequence
            rest -= sequence.num_rows
        if rest == 0:
            return
    raise CompressError(f"{plan.text} has {plan.tokens - rest} tokens in whole windows of {plan.length}; ask for fewer")


@contextmanager
def kept_samples(store: Path, kept: Path) -> Iterator[None]:
    """A new `store` begins with the samples that are `kept`; at the end those of both are kept that are more."""
    if kept.exists() and not store.exists():
        shutil.copyfile(kept, store)
    yield
    if store.exists() and (not kept.exists() or kept.stat().st_size < store.stat().st_size):
        keep(kept, lambda file: file.write(store.read_bytes()))


def _rows(plan: Calibration, prompt: list[int], answer: list[int]) -> Sequence:
    return Sequence(prompt + answer[:-1], 0 if plan.source == "prompts+generated" else len(prompt))


def _windows(llm: LLM, plan: Calibration) -> Iterator[Sequence]:
    """Windows of the text that do not overlap, in an order drawn by the seed."""
    assert plan.text is not None
    ids = llm.tokenizer.encode(_read(plan.text), parse_special=False)
    length = min(plan.length, llm.max_model_len)
    for i in np.random.default_rng(plan.seed).permutation(len(ids) // length):
        yield Sequence(ids[i * length : (i + 1) * length], 0)


def _samples(llm: LLM, plan: Calibration, store: Path, anew: bool) -> Iterator[tuple[list[int], list[int]]]:
    """(prompt, answer), without end: prompts in turns, the seed of an answer being that of its number."""
    prompts = read_prompts(llm, plan.prompts, raw=plan.raw)
    first, step = plan.part
    prompts = prompts[first::step] or prompts
    stored = _stored(store)
    yield from stored
    if stored:  # without a last line that was cut short
        store.write_text("".join(map(_line, stored)), encoding="utf-8")
    number = len(stored)
    while True:
        batch = range(number, number + AT_ONCE)
        asked = [prompts[i % len(prompts)] for i in batch]
        params = [
            SamplingParams(
                temperature=plan.temperature,
                seed=child_seed(plan.seed, i),
                max_tokens=min(plan.length, llm.max_model_len - len(prompt)) or 1,
                detokenize=False,
                skip_reading_prefix_cache=anew,
            )
            for i, prompt in zip(batch, asked, strict=True)
        ]
        answers = [answer.outputs[0].token_ids for answer in llm.generate(asked, params)]
        pairs = list(zip(asked, answers, strict=True))
        if plan.source == "generated" and all(len(answer) < 2 for answer in answers):
            raise CompressError("the model ends every answer with its first token: give it other --prompts")
        with store.open("a", encoding="utf-8") as file:
            file.write("".join(map(_line, pairs)))
        yield from pairs
        number += AT_ONCE


def _line(sample: tuple[list[int], list[int]]) -> str:
    return json.dumps({"prompt": sample[0], "answer": sample[1]}) + "\n"


def _stored(store: Path) -> list[tuple[list[int], list[int]]]:
    found = []
    for line in store.read_text(encoding="utf-8").splitlines() if store.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:  # cut short
            break
        found.append((entry["prompt"], entry["answer"]))
    return found


def read_prompts(llm: LLM, path: Path | None, *, raw: bool = False) -> list[list[int]]:
    """Prompts as token ids: the file's, else openers for a chat model and the empty text for others.

    A file holds a prompt a line; when its name ends in .jsonl, an object a line, whose first of PROMPT_FIELDS is taken.
    Raises CompressError for a file without prompts.
    """
    chat = llm.chat_template.source is not None and not raw
    if path is None:
        return [_encode(llm, text, chat) for text in openers()] if chat else [_begin(llm)]
    lines = [(n, line) for n, line in enumerate(_read(path).splitlines(), 1) if line.strip()]
    texts = [_prompt(path, n, line) if path.suffix == ".jsonl" else line for n, line in lines]
    if not texts:
        raise CompressError(f"{path} holds no prompts: put one on each line")
    prompts = [_encode(llm, text, chat) for text in texts]
    for (n, _), ids in zip(lines, prompts, strict=True):
        if len(ids) + 2 > llm.max_model_len:
            raise CompressError(
                f"{path}, line {n}: {len(ids)} tokens leave no room in a context of {llm.max_model_len}"
            )
    return prompts


def _begin(llm: LLM) -> list[int]:
    ids = llm.tokenizer.encode("") or [i for i in (llm.tokenizer.bos_id,) if i is not None]
    if not ids:
        raise CompressError("the model has no token that begins a text: give it --prompts FILE")
    return list(ids)


def _encode(llm: LLM, text: str, chat: bool) -> list[int]:
    return list(llm.chat_template.encode([{"role": "user", "content": text}]) if chat else llm.tokenizer.encode(text))


def _prompt(path: Path, number: int, line: str) -> str:
    try:
        entry: Any = json.loads(line)
        found = next(entry[field] for field in PROMPT_FIELDS if field in entry)
        text = found[0] if isinstance(found, list) else found
    except (ValueError, KeyError, TypeError, IndexError, StopIteration):
        text = None
    if not isinstance(text, str) or not text:
        names = " or ".join(f'"{field}"' for field in PROMPT_FIELDS)
        raise CompressError(f"{path}, line {number}: not a JSON object with {names}")
    return text


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CompressError(f"{path} cannot be read as UTF-8 text: {error}") from error


def batches(chosen: Iterable[Sequence], most: int) -> Iterator[list[Sequence]]:
    """Sequences in order, so many together as have at most `most` tokens, or one that has more."""
    left = iter(chosen)
    batch = list(islice(left, 1))
    for sequence in left:
        if sum(len(s.tokens) for s in batch) + len(sequence.tokens) > most:
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch

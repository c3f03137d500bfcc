"""The text that a model writes, and its hidden states as it does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..compress.artifact import write
from ..compress.hessians import ROWS, forwards
from ..compress.sequences import Calibration, Sequence, batches, draw
from ..native import NativeModel
from ..types import F32, ForwardBatch, ForwardOutput
from .base import Texts, TrainError

if TYPE_CHECKING:
    from narrows import LLM

Track = Callable[[str, int], Any]  # (what is done, how much of it) -> a context that gives an advance
F16 = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Features:
    """Texts in a row, and the states [rows, (layers + 1) * H] of their tokens, the last layer's behind the others'."""

    texts: list[Sequence]
    states: F16
    starts: list[int]  # the first row of each text


class Recorder:
    """Stands before a model and keeps the states of sequences that are read from their beginning.

    A sequence goes by its first page, which is its own as long as it grows.
    """

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._growing: dict[int, tuple[list[int], list[F16]]] = {}
        self._ended: dict[tuple[int, ...], list[F16]] = {}

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """A step of the model."""
        out = self._model.forward(batch)
        assert out.hidden is not None
        for b, (start, end) in enumerate(zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)):
            page, before = int(batch.page_table[b, 0]), int(batch.context_lens[b] - (end - start))
            if before == 0:
                self._end(page)
                self._growing[page] = [], []
            tokens, states = self._growing[page]
            assert len(tokens) == before, "a sequence was not read from its beginning"
            tokens += batch.tokens[start:end].tolist()
            states.append(_narrow(out.hidden[start:end]))
        return out

    def take(self, tokens: list[int]) -> F16 | None:
        """The states [n, width] of a sequence that has ended; None when it was not seen. They are gone then."""
        for page in list(self._growing):
            self._end(page)
        states = self._ended.pop(tuple(tokens), None)
        return None if states is None else np.concatenate(states)

    def _end(self, page: int) -> None:
        if page in self._growing:
            tokens, states = self._growing.pop(page)
            self._ended[tuple(tokens)] = states


def collect(llm: LLM, model_sha256: str, texts: Texts, layers: tuple[int, ...], place: Path, track: Track) -> Features:
    """Lets the model write, and keeps what it wrote and its states in a folder of `place`, from which it goes on.

    Raises TrainError when there is nothing to learn from.
    """
    record = {k: v for k, v in texts.record().items() if k != "tokens"} | {"model": model_sha256}
    folder = place / f"text-{hashlib.sha256(json.dumps(record).encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "settings.json", [json.dumps(record, indent=2).encode()])
    path = folder / f"states-{'-'.join(map(str, layers))}.f16"
    note = path.with_suffix(".json")  # the lengths of the texts whose states are there
    known: list[int] = json.loads(note.read_text()) if note.exists() else []
    width = (len(layers) + 1) * llm.loaded.spec.hidden_size
    chosen: list[Sequence] = []
    lengths: list[int] = []
    path.touch()
    with track("writing text", texts.tokens) as advance, _recorded(llm, layers) as recorder, path.open("r+b") as file:
        for batch in batches(_written(llm, texts, folder), ROWS):
            sizes = [len(s.tokens) for s in batch]
            if known[len(lengths) : len(lengths) + len(sizes)] != sizes:
                file.seek(sum(lengths) * 2 * width)
                for states in _states(llm, recorder, batch):
                    file.write(states.tobytes())
                file.flush()
                known = lengths + sizes
                write(note, [json.dumps(known).encode()])
            chosen, lengths = chosen + batch, lengths + sizes
            advance(sum(s.num_rows for s in batch))
    if len(chosen) < 2:
        raise TrainError(f"--tokens {texts.tokens} is one answer; ask for more, some are kept for testing")
    starts = np.cumsum([0, *lengths]).tolist()
    return Features(chosen, np.memmap(path, np.float16, "r", shape=(starts[-1], width)), starts)


def _written(llm: LLM, texts: Texts, folder: Path) -> Iterator[Sequence]:
    """The answers, each file of prompts having its share."""
    files: tuple[Path | None, ...] = texts.data or (None,)
    for i, file in enumerate(files):
        count = texts.tokens * (i + 1) // len(files) - texts.tokens * i // len(files)
        plan = Calibration("generated", count, texts.length, texts.temperature, texts.seed, file)
        yield from (s for s in draw(llm, plan, folder / f"answers-{i}.jsonl", anew=True) if len(s.tokens) > 2)


def _states(llm: LLM, recorder: Recorder, batch: list[Sequence]) -> Iterator[F16]:
    """Of sequences in order, [rows, width]: as they were written or, where an earlier run wrote them, read again."""
    for sequence in batch:
        states = recorder.take(sequence.tokens)
        if states is None:
            ((step, _),) = forwards(llm, [sequence])
            out = llm.loaded.model.forward(replace(step, logit_rows=step.logit_rows[:0]))
            assert out.hidden is not None
            states = _narrow(out.hidden)
        yield states


@contextmanager
def _recorded(llm: LLM, layers: tuple[int, ...]) -> Iterator[Recorder]:
    model, engine = llm.loaded.model, llm.engine
    assert engine.speculation is None, "a recorder knows no drafts"
    model.hidden_of, before = (*layers, llm.loaded.spec.num_layers), model.hidden_of
    recorder = engine.model = Recorder(model)
    try:
        yield recorder
    finally:
        engine.model, model.hidden_of = model, before


def _narrow(states: F32) -> F16:
    largest = np.finfo(np.float16).max
    return np.clip(states, -largest, largest).astype(np.float16)

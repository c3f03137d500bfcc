"""The text that a model writes, and its hidden states on it."""

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
from ..compress.sequences import Calibration, Sequence, batches, sequences
from ..native import NativeModel
from .base import Texts, TrainError

if TYPE_CHECKING:
    from narrows import LLM

Track = Callable[[str, int], Any]  # (what is done, how much of it) -> a context that gives an advance
LARGEST = 65504  # float16


@dataclass(frozen=True, slots=True)
class Features:
    """Texts in a row, and the states [rows, (layers + 1) * H] of their tokens, the last layer's behind the others'."""

    texts: list[Sequence]
    states: npt.NDArray[np.float16]
    starts: list[int]  # the first row of each text


def collect(llm: LLM, model_sha256: str, texts: Texts, layers: tuple[int, ...], place: Path, track: Track) -> Features:
    """Lets the model write, and reads what it wrote. Both are kept in a folder of `place` and are not done again.

    Raises TrainError when there is nothing to learn from.
    """
    record = {k: v for k, v in texts.record().items() if k != "tokens"} | {"model": model_sha256}
    folder = place / f"text-{hashlib.sha256(json.dumps(record).encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "settings.json", [json.dumps(record, indent=2).encode()])
    files: tuple[Path | None, ...] = texts.data or (None,)
    chosen: list[Sequence] = []
    with track("writing text", texts.tokens) as advance:
        for i, file in enumerate(files):
            count = texts.tokens * (i + 1) // len(files) - texts.tokens * i // len(files)
            plan = Calibration("generated", count, texts.length, texts.temperature, texts.seed, file)
            chosen += [s for s in sequences(llm, plan, folder / f"answers-{i}.jsonl", advance) if len(s.tokens) > 2]
    if len(chosen) < 2:
        raise TrainError(f"--tokens {texts.tokens} is one answer; ask for more, some are kept for testing")
    lengths = [len(s.tokens) for s in chosen]
    starts = np.cumsum([0, *lengths]).tolist()
    width = (len(layers) + 1) * llm.loaded.spec.hidden_size
    path = folder / f"states-{'-'.join(map(str, layers))}.f16"
    note = path.with_suffix(".json")  # the lengths of the texts whose states are there
    known = json.loads(note.read_text()) if note.exists() else []
    done = next(
        (i for i, (a, b) in enumerate(zip(known, lengths, strict=False)) if a != b), min(len(known), len(lengths))
    )
    with track("reading it", starts[-1]) as advance, _giving(llm.loaded.model, (*layers, llm.loaded.spec.num_layers)):
        advance(starts[done])
        with path.open("r+b" if done else "wb") as file:
            file.seek(starts[done] * 2 * width)
            for batch in batches(chosen[done:], ROWS):
                for step, _ in forwards(llm, batch):
                    hidden = llm.loaded.model.forward(replace(step, logit_rows=step.logit_rows[:0])).hidden
                    assert hidden is not None
                    file.write(np.clip(hidden, -LARGEST, LARGEST).astype(np.float16).tobytes())
                file.flush()
                done += len(batch)
                write(note, [json.dumps(lengths[:done]).encode()])
                advance(sum(len(s.tokens) for s in batch))
    states = np.memmap(path, np.float16, "r", shape=(starts[-1], width))
    return Features(chosen, states, starts)


@contextmanager
def _giving(model: NativeModel, layers: tuple[int, ...]) -> Iterator[None]:
    model.hidden_of, before = layers, model.hidden_of
    try:
        yield
    finally:
        model.hidden_of = before

"""How well a model reads a text, and how far it is from the baseline on every token of it.

Both measures use the protocol of llama.cpp's perplexity tool, so that figures compare: the text is cut into windows
that do not overlap, each is read from an empty context with BOS in place of its first token when the model adds one,
and only the second half of a window is scored (tokens ``window // 2 + 1`` to the last: 255 of 512).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import xxhash

from narrows.checkpoints.compressed import sha256
from narrows.machine import cache_dir, keep

from .base import DataError, Item, Metric, Record
from .openers import continuations, opening
from .teacher import divergence, forced_logits, surprise

if TYPE_CHECKING:
    from narrows import LLM

WIKITEXT = "wikitext-2/wiki.test.raw"
OWN_WINDOWS = 16  # of text the model makes itself, where there is no end to it
DIGITS = 4  # of a token's divergence in a record


@dataclass(frozen=True, slots=True)
class Windows:
    """Settings of a text in windows.

    `text` is the path of a file, ``wikitext-2`` (in the folder given as --data), ``own`` (the baseline's own writing,
    sampled at temperature 1) or ``auto``: the second where it is, else the third. `chunks` 0 means all windows.
    """

    window: int = 512
    chunks: int = 0
    text: str = "auto"

    dataset: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        if self.window < 8:
            raise ValueError(f"window is {self.window}; it must be at least 8 tokens")
        if self.chunks < 0:
            raise ValueError(f"chunks is {self.chunks}; it must be at least 1, or 0 for all")

    @property
    def first(self) -> int:
        """The first row of a window that is scored."""
        return self.window // 2

    def items(self, data: Path | None, model: LLM) -> Sequence[Item]:
        """A window each, named by the text and its number; content is its token ids [window]."""
        if self.window > model.max_model_len:
            raise DataError(f"window is {self.window} tokens; the model's context is {model.max_model_len}")
        path = self._path(data)
        if path is None:
            return [Item(f"own/{i}", ids) for i, ids in enumerate(_own_text(model, self.window, self.chunks))]
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from error
        tokenizer = model.tokenizer
        ids = tokenizer.encode(text.removesuffix("\n"), parse_special=False)
        count = len(ids) // self.window
        if count == 0:
            raise DataError(f"{path} has {len(ids)} tokens, fewer than one window of {self.window}")
        bos = tokenizer.bos_id
        front = [bos] if bos is not None and tokenizer.encode("")[:1] == [bos] else []
        return [
            Item(f"{path.name}/{i}", front + ids[i * self.window + len(front) : (i + 1) * self.window])
            for i in range(min(count, self.chunks or count))
        ]

    def _path(self, data: Path | None) -> Path | None:
        if self.text == "own":
            return None
        if self.text not in ("auto", "wikitext-2"):
            return Path(self.text).expanduser()
        path = data / WIKITEXT if data else None
        if path is not None and path.is_file():
            return path
        if self.text == "auto":
            return None
        raise DataError(f"there is no {path or 'DIR/' + WIKITEXT}: give --data DIR, the folder that holds wikitext-2")


@dataclass(frozen=True, slots=True)
class Perplexity(Windows):
    """Perplexity of a text: exp of the mean negative log-likelihood of its tokens."""

    joint: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("perplexity", "lower", "perplexity", "nll", "tokens"),)

    def quick(self) -> Perplexity:
        return replace(self, chunks=8)

    def run(self, model: LLM, baseline: LLM | None, items: Sequence[Item]) -> Iterator[Record]:
        """A record's `nll` is the mean over its window, in nats a token."""
        for item in items:
            ids, row, total = item.content, self.first, 0.0
            for logits in forced_logits(model, ids[:-1], row):
                total += surprise(logits, ids[row + 1 : row + 1 + len(logits)]).sum()
                row += len(logits)
            count = row - self.first
            yield {"id": item.id, "nll": total / count, "tokens": count}


@dataclass(frozen=True, slots=True)
class Divergence(Windows):
    """KL divergence of the model from the baseline, token by token, and how often both would choose the same token."""

    joint: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("mean", "lower", key="kl", weight="tokens"),
        Metric("p99", "lower", "p99", "each"),
        Metric("worst", "lower", "max", "each"),
        Metric("top1", "higher", key="same", weight="tokens"),
    )

    def quick(self) -> Divergence:
        return replace(self, chunks=8)

    def run(self, model: LLM, baseline: LLM | None, items: Sequence[Item]) -> Iterator[Record]:
        """A record holds the divergence of its window, its mean and each token's, and the share of equal choices."""
        assert baseline is not None
        check_vocabularies(model, baseline)
        for item in items:
            ids = item.content[:-1]
            pairs = zip(forced_logits(baseline, ids, self.first), forced_logits(model, ids, self.first), strict=True)
            parts = [(divergence(p, q), p.argmax(-1) == q.argmax(-1)) for p, q in pairs]
            kl, same = (np.concatenate(part) for part in zip(*parts, strict=True))
            yield {"id": item.id, "kl": kl.mean(), "same": same.mean(), "tokens": len(kl), "each": rounded(kl)}


def rounded(values: Iterable[float]) -> list[float]:
    """The divergence of each token, as short as a record may have it."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


def check_vocabularies(model: LLM, baseline: LLM) -> None:
    """Raises DataError when two models do not speak of the same tokens, which a divergence would compare."""
    if model.engine.vocab_size != baseline.engine.vocab_size:
        raise DataError(
            f"the model has {model.engine.vocab_size} tokens and the baseline {baseline.engine.vocab_size}: "
            "a divergence needs one vocabulary"
        )


def _own_text(model: LLM, window: int, chunks: int) -> list[list[int]]:
    """Windows of what the model writes by itself, each after an opener; kept, as every candidate is read along them."""
    prompts = [opening(model, i)[: window // 2] for i in range(chunks or OWN_WINDOWS)]
    key = json.dumps([sha256(model.loaded.path), str(model.loaded.stack), version("narrows"), window, prompts])
    path = cache_dir() / "texts" / f"{xxhash.xxh3_128_hexdigest(key.encode())}.json"
    with suppress(OSError, ValueError):  # not there yet, or damaged
        return json.loads(path.read_text())
    written = continuations(model, prompts, [window - len(p) for p in prompts], temperature=1)
    windows = [p + w for p, w in zip(prompts, written, strict=True)]
    keep(path, lambda file: file.write(json.dumps(windows).encode()))
    return windows

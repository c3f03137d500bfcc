"""When requests arrive and how long they are: from a trace, or drawn."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

BLOCK_TOKENS = 512  # of a Mooncake trace's blocks
# Short names, by file in the folder of data sets.
TRACES = {
    "azure-code": "azure-llm-2023/AzureLLMInferenceTrace_code.csv",
    "azure-conv": "azure-llm-2023/AzureLLMInferenceTrace_conv.csv",
    "mooncake-conv": "mooncake/conversation_trace.jsonl.gz",
    "mooncake-synthetic": "mooncake/synthetic_trace.jsonl",
}


class TraceError(ValueError):
    """A trace that cannot be replayed; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to be sent `at` seconds after the first. Lengths in tokens.

    `blocks` are ids of the prompt's parts, of `block_tokens` each: equal ids are equal texts. None: nothing is shared.
    """

    at: float
    num_prompt: int
    num_output: int
    blocks: tuple[int, ...] | None = None
    block_tokens: int = BLOCK_TOKENS


def find_trace(name: str, data: Path | None) -> Path:
    """The file of a trace, by short name in the folder `data` or by path. Raises TraceError."""
    if name in TRACES:
        if data is None:
            raise TraceError(f"the trace {name} needs --data, the folder that has {TRACES[name]}")
        path = data / TRACES[name]
    else:
        path = Path(name).expanduser()
    if not path.is_file():
        raise TraceError(f"there is no trace {path}; a trace is a file, or one of {', '.join(TRACES)} with --data")
    return path


def read_trace(path: Path, limit: int | None = None) -> list[Arrival]:
    """The first arrivals of a trace, in order, the first at 0.

    Formats: the CSV of AzurePublicDataset (TIMESTAMP, ContextTokens, GeneratedTokens), and Mooncake's JSON lines
    (timestamp in ms, input_length, output_length, hash_ids), which may be gzipped. Raises TraceError.
    """
    records = _csv if path.name.endswith(".csv") else _jsonl
    found: list[Arrival] = []
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for number, arrival in records(lines):
                if arrival.num_prompt < 0 or arrival.num_output < 0 or (found and arrival.at < found[-1].at):
                    raise TraceError(f"{path}, record {number}: lengths below 0, or earlier than the record before")
                # A request reads and writes a token at least, whatever a trace says.
                shape = {"num_prompt": max(1, arrival.num_prompt), "num_output": max(1, arrival.num_output)}
                found.append(replace(arrival, **shape))
                if len(found) == limit:
                    break
    except (KeyError, TypeError, OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} is not a trace: {type(error).__name__} {error}") from None
    except ValueError as error:
        raise error if isinstance(error, TraceError) else TraceError(f"{path} is not a trace: {error}") from None
    if not found:
        raise TraceError(f"{path} holds no requests")
    return [replace(arrival, at=arrival.at - found[0].at) for arrival in found]


def _csv(lines: Any) -> Iterator[tuple[int, Arrival]]:
    for number, row in enumerate(csv.DictReader(lines), 1):
        at = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
        yield number, Arrival(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _jsonl(lines: Any) -> Iterator[tuple[int, Arrival]]:
    for number, line in enumerate(lines, 1):
        row = json.loads(line)
        blocks = tuple(map(int, row["hash_ids"])) if "hash_ids" in row else None
        yield (
            number,
            Arrival(float(row["timestamp"]) / 1e3, int(row["input_length"]), int(row["output_length"]), blocks),
        )


def shaped(arrivals: Sequence[Arrival], *, scale: float = 1, lengths: float = 1) -> list[Arrival]:
    """The same load `scale` times as fast, with prompts, their shared blocks and outputs `lengths` times as long."""
    return [
        replace(
            arrival,
            at=arrival.at / scale,
            num_prompt=max(1, round(arrival.num_prompt * lengths)),
            num_output=max(1, round(arrival.num_output * lengths)),
            block_tokens=max(1, round(arrival.block_tokens * lengths)),
        )
        for arrival in arrivals
    ]


def poisson(arrivals: Sequence[Arrival], rate: float, seed: int) -> list[Arrival]:
    """The same requests, arriving as a Poisson process of `rate` a second; an infinite rate sends them all at once."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, len(arrivals))
    times = np.cumsum(gaps) - gaps[0]
    return [replace(arrival, at=at) for arrival, at in zip(arrivals, times.tolist(), strict=True)]

"""What gateway and subserver say to each other: fixed records, in MessagePack, over a socket in a private folder.

A subserver is told its options in one line of JSON on stdin, connects to the gateway's socket, says Ready or Failed,
then takes commands between steps and reports after each. When its stdin closes, the gateway is gone or wants it gone,
and it leaves.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..ledger import Ledger
from ..sampling import SamplingParams
from ..types import TokenLogprobs


class Options(msgspec.Struct, frozen=True):
    """How a subserver loads its model: the arguments of `narrows.loader.load`, and where the gateway listens."""

    address: str
    model: str
    stack: str | None = None
    weights: str | None = None
    num_threads: int | None = None
    max_model_len: int | None = None
    kv_cache_bytes: int | None = None


class Submit(msgspec.Struct, tag="submit", frozen=True):
    """One prompt and its `params.n` answers."""

    id: str
    prompt: list[int]
    params: SamplingParams
    seed: int  # drawn by the gateway, so that a retry gives the same answer
    salt: str = ""
    deadline: float | None = None  # on the machine's monotonic clock
    owner: str = ""  # whose share of the engine it is
    priority: int = 0
    embed: bool = False  # it wants no answer but an embedding


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    id: str


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """Asks for a report though nothing happened."""


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The model is loaded; what it can take."""

    max_model_len: int
    vocab_size: int
    hidden_size: int
    max_num_seqs: int  # sequences that run at once
    num_pages: int
    page_size: int
    num_threads: int
    stack: str
    lossless: bool


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The model cannot be loaded, and why."""

    message: str


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What a step brought one answer."""

    id: str
    index: int  # of n
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None  # of token_ids
    prompt_logprobs: list[TokenLogprobs | None] | None  # of the whole prompt, with an answer's first
    finish_reason: str | None
    stop_reason: str | int | None
    num_cached: int
    ledger: dict[str, Any] | None  # when it is finished
    embedding: bytes | None = None  # little-endian float32, of length 1
    num_drafted: int = 0  # the first of token_ids, which were guessed and kept
    num_drafted_chars: int = 0  # the first of text, which they completed


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """A prompt whose answers will not come. `code`: refused, deadline or error."""

    id: str
    code: str
    message: str


class Report(msgspec.Struct, tag="report", frozen=True):
    """Where the engine is, and what the step brought."""

    num_running: int
    num_waiting: int
    num_free_pages: int
    ledger: Ledger
    started: list[str] = []  # prompts that are being worked on since this step
    deltas: list[Delta] = []
    ended: list[Ended] = []


Command = Submit | Cancel | Ping
Message = Ready | Failed | Report

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_message = msgspec.msgpack.Decoder(Message).decode

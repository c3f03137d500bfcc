"""The records that cross seams, and the legend of shapes in all signatures. This file imports nothing of ours.

B   requests in a step                          H    hidden size
T   tokens in a step, all requests together     Hq   query heads, Hkv key/value heads
R   rows of logits asked for                    D    head dimension
V   vocabulary                                  P    pages in a row of the page table
L   KV entries of one request                   S    page size, in tokens
A *slot* is where a KV entry is stored; a *position* is the number RoPE sees. They are never assumed equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
TARGET = "target"  # the model every request has a cursor for


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of a kind of layer: pair (i, i + D/2) at position p turns by ``p * inv_freq[i]``."""

    inv_freq: tuple[float, ...]  # [D/2], after llama3 / yarn / linear scaling
    scale: float = 1.0  # multiplies cos and sin (yarn's attention factor)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a checkpoint computes, in the terms of the native forward. Families declare it; nothing else knows them."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int  # Hq
    num_kv_heads: int  # Hkv
    head_dim: int  # D
    ffn_size: int
    vocab_size: int
    max_context: int  # positions the model was trained for
    norm_eps: float
    activation: str  # "silu" | "gelu_tanh": act(gate) * up
    attention_scale: float  # multiplies q.k
    ropes: tuple[RopeSpec, ...]
    layer_rope: tuple[int, ...]  # [num_layers] index into ropes
    layer_window: tuple[int, ...]  # [num_layers] sliding window in tokens, 0 = full attention
    embed_scale: float = 1.0
    tied_head: bool = False


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Where one of the model's tensors comes from in a checkpoint, and what must be done to it on the way."""

    name: str  # in the checkpoint
    shape: tuple[int, ...]  # [out, in] for a matrix, [n] for a vector; the checkpoint must agree
    interleaved_heads: int = 0  # rows hold this many heads in interleaved RoPE order: bring them to half-split order
    add: float = 0.0  # added to a vector (gemma's norms are stored as w - 1 in Hugging Face files)


@dataclass(slots=True)
class Cursor:
    """How far one model has read a request, and the pages that hold it."""

    num_read: int = 0  # tokens of the request whose KV is in `pages`
    pages: list[int] = field(default_factory=list)
    num_full: int = 0  # leading pages full of committed tokens, which can be shared


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence being generated. Only ``engine.commit`` changes it."""

    id: str
    tokens: list[int]  # prompt, then output
    num_prompt: int
    params: Any  # SamplingParams
    seed: int
    arrival: float  # monotonic seconds
    salt: str = ""  # keeps prefix-cache entries of different owners apart
    owner: str = ""  # requests of different owners share the engine fairly
    priority: int = 0  # among those of one owner, lower is earlier
    cursors: dict[str, Cursor] = field(default_factory=lambda: {TARGET: Cursor()})
    draft: Draft | None = None
    state: dict[str, Any] = field(default_factory=dict)  # per part; no part keeps state of its own
    status: Status = Status.WAITING
    finish_reason: str | None = None  # "stop" | "length" | "abort"
    num_cached: int = 0  # prompt tokens taken from the prefix cache
    num_preemptions: int = 0
    pooled: Any = None  # Pooled: it wants no answer but its mean hidden state

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed continuation, not empty. ``parents`` None is a chain; ``probs`` None is a deterministic drafter."""

    tokens: I32  # [k]
    parents: I32 | None = None  # [k], index of each token's parent, before it; -1 = the last committed token
    probs: F64 | None = None  # [k, V], what each token was drawn from
    logprobs: F32 | None = None  # [k], how sure the drafter was of each token

    def children(self, node: int) -> list[int]:
        """Indices of the tokens that are proposed to follow token `node`; -1 is the last committed one."""
        chain = [node + 1] if node + 1 < len(self.tokens) else []
        return chain if self.parents is None else np.flatnonzero(self.parents == node).tolist()

    def paths(self) -> list[list[int]]:
        """For each token, the tokens proposed up to it."""
        parents = range(-1, len(self.tokens) - 1) if self.parents is None else self.parents.tolist()
        paths: list[list[int]] = [[]]  # by parent, plus one
        for parent, token in zip(parents, self.tokens.tolist(), strict=True):
            paths.append([*paths[parent + 1], token])
        return paths[1:]

    @property
    def depth(self) -> int:  # of its longest path
        return len(self.tokens) if self.parents is None else max(map(len, self.paths()))

    def first(self, k: int) -> Draft | None:
        """Its first k tokens; None when that is none. For a drawn draft k must not depend on what was drawn."""
        rest: list[Any] = [part if part is None else part[:k] for part in (self.parents, self.probs, self.logprobs)]
        return Draft(self.tokens[:k], *rest) if k > 0 else None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Which requests advance in this step, and by how many tokens (draft tokens included)."""

    items: list[tuple[Request, int]]
    preempted: list[Request] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(n for _, n in self.items)


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One native call. Request b owns rows ``cu_seqlens[b]:cu_seqlens[b+1]``, the last of its entries.

    Its KV entry i is at offset ``i % S`` of page ``page_table[b, i // S]``. A row sees entries up to its own or, of the
    step's, those on its path.
    """

    tokens: I32  # [T]
    positions: I32  # [T]
    cu_seqlens: I32  # [B+1]
    context_lens: I32  # [B] entries after this step
    page_table: I32  # [B, P]
    logit_rows: I32  # [R] indices into T
    parents: I32 | None = None  # [T] the row before each on its path, -1 = the last entry before the step; None: chains
    prompt_rows: I32 | None = None  # [B] how many of a request's rows, its first, are of its prompt; None: none
    final_rows: I32 | None = None  # [E] indices into T whose states after the final norm are wanted


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """What came back: logits and what it cost."""

    logits: F32  # [R, V]
    weight_bytes: int
    kv_bytes: int
    seconds: float
    hidden: F32 | None = None  # [T, n * H] the residual stream at n places, of a model that a head drafts for
    final: F32 | None = None  # [E, H] at the batch's final_rows


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decided for one request: the tokens to append, and which guesses they are, but for the last."""

    tokens: list[int]
    path: list[int] = field(default_factory=list)  # indices of the accepted tokens in the draft
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw (pre-temperature) log-probabilities at one position."""

    token: int
    logprob: float
    rank: int  # 1 = most likely
    top: list[tuple[int, float]]  # the requested number of (token, logprob), most likely first

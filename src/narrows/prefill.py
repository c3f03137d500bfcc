"""Prompts read with the unmodified weights, output written with others: ``prefill=dense``.

A prompt is read many tokens at a time, which is paid in arithmetic and not in bytes: cheaper weights buy little there,
and cost quality (SlimWise prunes only what decodes, for the same reason). Which weights read a token depends on where
it stands in its own request and on nothing else, so a row is what it is in any batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .reader import Model
from .types import ForwardBatch, ForwardOutput

Mask = np.typing.NDArray[np.bool_]


class DensePrefill:
    """Two models of the same shape over the same KV pages: one for rows of prompts, one for those of output."""

    def __init__(self, prompts: Model, outputs: Model) -> None:
        self.prompts, self.outputs = prompts, outputs

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        """One step, in two forwards if it has rows of both. Raises ValueError as its models do."""
        if batch.prompt_rows is None or not batch.prompt_rows.any():
            return self.outputs.forward(batch)
        counts = np.diff(batch.cu_seqlens)
        if np.array_equal(batch.prompt_rows, counts):
            return self.prompts.forward(batch)
        starts = np.repeat(batch.cu_seqlens[:-1], counts)
        of_prompt = np.arange(len(batch.tokens)) - starts < np.repeat(batch.prompt_rows, counts)
        ends = batch.context_lens - counts + batch.prompt_rows
        first = self.prompts.forward(_part(batch, of_prompt, batch.prompt_rows, ends))  # output sees its prompt
        second = self.outputs.forward(_part(batch, ~of_prompt, counts - batch.prompt_rows, batch.context_lens))
        logits = np.empty((len(batch.logit_rows), second.logits.shape[1]), np.float32)
        wanted = of_prompt[batch.logit_rows]
        logits[wanted], logits[~wanted] = first.logits, second.logits
        hidden = None
        if first.hidden is not None and second.hidden is not None:
            hidden = np.empty((len(batch.tokens), first.hidden.shape[1]), np.float32)
            hidden[of_prompt], hidden[~of_prompt] = first.hidden, second.hidden
        return ForwardOutput(
            logits,
            first.weight_bytes + second.weight_bytes,
            first.kv_bytes + second.kv_bytes,
            first.seconds + second.seconds,
            hidden,
            first.final,  # only prompts are pooled
        )


def _part(batch: ForwardBatch, kept: Mask, counts: np.ndarray, context_lens: np.ndarray) -> ForwardBatch:
    """The batch of some rows, `counts` [B] of each request; one whose parent is not among them follows what is read."""
    place = np.cumsum(kept, dtype=np.int32) - 1

    def of(rows: np.ndarray) -> np.ndarray:
        return place[rows[kept[rows]]]

    parents = None
    if batch.parents is not None:
        inside = (batch.parents >= 0) & kept[batch.parents]
        parents = np.where(inside, place[batch.parents], -1).astype(np.int32)[kept]
    return replace(
        batch,
        tokens=batch.tokens[kept],
        positions=batch.positions[kept],
        cu_seqlens=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        context_lens=context_lens.astype(np.int32),
        logit_rows=of(batch.logit_rows),
        parents=parents,
        prompt_rows=None,
        final_rows=None if batch.final_rows is None else of(batch.final_rows),
    )

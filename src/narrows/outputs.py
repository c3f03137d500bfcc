"""What a generation gives: ids, text, reasons, figures; and how text comes out of tokens as they arrive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .engine import StepResult
from .ledger import RequestMetrics
from .text import Detokenizer, StopStrings, Tokenizer
from .types import F32, Request, TokenLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None  # "stop" | "length" | "abort", None while it grows
    stop_reason: str | int | None  # the stop string or stop token that ended it
    logprobs: list[TokenLogprobs] | None  # one a token
    metrics: RequestMetrics
    embedding: F32 | None = None  # [H] of length 1, instead of an answer


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its n answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None  # one a token, the first being None
    outputs: list[CompletionOutput]

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def metrics(self) -> RequestMetrics:
        """Figures of the first answer."""
        return self.outputs[0].metrics


class Completion:
    """An answer being put together from step results."""

    def __init__(self, request: Request, tokenizer: Tokenizer, index: int = 0) -> None:
        params = request.params
        self.request = request
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None if params.prompt_logprobs is None else [None]
        logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self.output = CompletionOutput(index, "", [], None, None, logprobs, request.state["metrics"])
        self._text = Detokenizer(tokenizer, params.skip_special_tokens) if params.detokenize else None
        self._stops = StopStrings(params.stop)
        self._end_ids = tokenizer.eos_ids.union(params.stop_token_ids)
        self.drafted = (0, 0)  # tokens and characters of the latest push that were guessed and kept: its first

    @property
    def finished(self) -> bool:
        return self.output.finish_reason is not None

    def push(self, result: StepResult) -> str:
        """Takes what a step brought; returns the text that is certain now.

        When a stop string ends the answer it is finished before its request is, which the caller then has to abort.
        """
        output = self.output
        if self.prompt_logprobs is not None and result.prompt_logprobs:
            self.prompt_logprobs += result.prompt_logprobs
        if self.request.pooled is not None and result.finish_reason:
            mean = self.request.pooled.mean
            output.embedding = mean / max(float(np.linalg.norm(mean)), 1e-12)
        delta, self.drafted = "", (0, 0)
        for i, token in enumerate(result.tokens):
            output.token_ids.append(token)
            if output.logprobs is not None and result.logprobs:
                output.logprobs.append(result.logprobs[i])
            last = result.finish_reason == "stop" and i == len(result.tokens) - 1
            ends = last and token in self._end_ids  # and not with what completes a grammar
            if ends and token in self.request.params.stop_token_ids:
                output.stop_reason = token
            if self._text and (not ends or self.request.params.include_stop_str_in_output):
                delta += self._emit(self._text.push([token]))
            if i < result.num_accepted:
                self.drafted = (i + 1, len(delta))
            if self.finished:  # the rest of an accepted draft is nobody's
                output.metrics.num_output = len(output.token_ids)
                break
        if result.finish_reason and not self.finished:
            if self._text:
                delta += self._emit(self._text.finish())
                delta += self._stops.finish()
            output.finish_reason = output.finish_reason or result.finish_reason
        output.text += delta
        return delta

    def _emit(self, text: str) -> str:
        params = self.request.params
        if len(self.output.token_ids) <= params.min_tokens:
            return text
        text, matched = self._stops.push(text)
        if matched is not None:
            self.output.finish_reason, self.output.stop_reason = "stop", matched
            if params.include_stop_str_in_output:
                text += matched
        return text

    def abort(self, reason: str = "abort") -> None:
        """Ends the answer where it is."""
        if not self.finished:
            self.output.finish_reason = reason

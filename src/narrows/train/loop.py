"""Learning: batches of text, unrolled drafts against the target's distribution, checkpoints, tests."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..types import F32, I32, ModelSpec
from .base import Course
from .features import Features, Track
from .network import Head

HELD_OUT = 20  # of so many texts one is for testing
DISCOUNT = 0.8  # of the loss by step (EAGLE-3)
CLIP = 0.5
WARM_UP = 0.05  # share of the steps
EVERY = 20  # batches between checkpoints


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is learned, and the target's own parts that are not."""

    features: Features
    embeds: Callable[[list[int]], F32]  # of n tokens, [n, H]
    ids: I32  # [V] the draft vocabulary
    rows: Tensor  # [V, H] the target's output rows of it
    norm: Tensor  # [H] before those


@dataclass(frozen=True, slots=True)
class _Batch:
    """Texts side by side, padded at the end."""

    embeds: Tensor  # [B, L, H]
    states: Tensor  # [B, L, 3H]
    target: Tensor  # [B, L, H] normed, what the target's output rows are multiplied with
    counts: Tensor  # [B, L] bool: the answer's tokens that follow are learned


def train(head: Head, lesson: Lesson, course: Course, saved: Path, track: Track) -> dict[str, Any]:
    """Trains, from the last checkpoint on; the losses, the tests and the result."""
    features = lesson.features
    learn = [i for i in range(len(features.texts)) if i % HELD_OUT]
    plan = [batch for epoch in range(course.epochs) for batch in _batches(features, learn, course, epoch)]
    optimizer = torch.optim.AdamW(head.parameters(), lr=course.rate, betas=(0.9, 0.95), weight_decay=0.0)
    history: dict[str, Any] = {"loss": [], "tests": [], "seconds": 0.0}
    begin = 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        head.load_state_dict(state["head"])
        optimizer.load_state_dict(state["optimizer"])
        begin, history = state["batch"], json.loads(state["history"])
    else:
        history["tests"].append({"batch": 0, **_test(head, lesson, course)})
    with track("training", len(plan)) as advance:
        advance(begin)
        began = time.monotonic()
        for n in range(begin, len(plan)):
            for group in optimizer.param_groups:
                group["lr"] = course.rate * _schedule(n, len(plan))
            batch = _gather(lesson, plan[n], head.spec)
            weights = _step_weights(course, n)
            loss = torch.zeros(())
            for step, found, _ in _losses(head, batch, lesson.rows, weights):
                loss = loss + weights[step] * found
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), CLIP)
            optimizer.step()
            history["loss"].append(round(float(loss.detach()), 5))
            last = n + 1 == len(plan)
            if last or (n + 1) % EVERY == 0:
                history["seconds"] += time.monotonic() - began
                began = time.monotonic()
                if last or (n + 1) % (5 * EVERY) == 0:
                    history["tests"].append({"batch": n + 1, **_test(head, lesson, course)})
                _save(saved, head, optimizer, n + 1, history)
                began = time.monotonic()
            advance(1)
    history["result"] = {
        "tokens": sum(text.num_rows for text in features.texts),
        "batches": len(plan),
        "seconds": round(history["seconds"], 1),
        **{k: v for k, v in history["tests"][-1].items() if k != "batch"},
    }
    return history


def _save(path: Path, head: Head, optimizer: torch.optim.Optimizer, batch: int, history: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    state = {"head": head.state_dict(), "optimizer": optimizer.state_dict(), "batch": batch}
    torch.save({**state, "history": json.dumps(history)}, temporary)
    temporary.replace(path)


def _schedule(n: int, total: int) -> float:
    """Of the highest rate: up in a line, down along a cosine to a tenth."""
    warm = max(1, round(WARM_UP * total))
    if n < warm:
        return (n + 1) / warm
    return 0.55 + 0.45 * math.cos(math.pi * (n - warm) / max(1, total - warm))


def _step_weights(course: Course, n: int) -> list[float]:
    """How much the loss of each step counts in batch `n`."""
    if course.loops == 1:
        raw = [DISCOUNT**s for s in range(course.depth)]
        return [w / sum(raw) for w in raw]
    stages = int(np.random.default_rng((course.seed, n)).integers(2, course.loops + 1))
    half = [0.5 / course.depth] * course.depth
    return half + [0.0] * (course.depth * (stages - 2)) + half


def _batches(features: Features, texts: list[int], course: Course, epoch: int) -> Iterator[list[int]]:
    """Texts in an order of the epoch's own, as many together as have at most `course.batch` tokens when padded."""
    batch: list[int] = []
    longest = 0
    for i in np.random.default_rng((course.seed, epoch)).permutation(texts).tolist():
        longest = max(longest, len(features.texts[i].tokens))
        if batch and longest * (len(batch) + 1) > course.batch:
            yield batch
            batch, longest = [], len(features.texts[i].tokens)
        batch.append(i)
    if batch:
        yield batch


def _gather(lesson: Lesson, texts: list[int], spec: ModelSpec) -> _Batch:
    features, hidden = lesson.features, spec.hidden_size
    chosen = [features.texts[i] for i in texts]
    length = max(len(text.tokens) for text in chosen)
    embeds = torch.zeros(len(chosen), length, hidden)
    states = torch.zeros(len(chosen), length, features.states.shape[1])
    counts = torch.zeros(len(chosen), length, dtype=torch.bool)
    for b, (i, text) in enumerate(zip(texts, chosen, strict=True)):
        n, start = len(text.tokens), features.starts[i]
        embeds[b, :n] = torch.tensor(lesson.embeds(text.tokens))
        states[b, :n] = torch.tensor(features.states[start : start + n].astype(np.float32))
        follows = np.isin([*text.tokens[1:], lesson.ids[0]], lesson.ids)  # what follows the last is not known
        follows[: max(text.first - 1, 0)] = False
        counts[b, :n] = torch.tensor(follows)
    target = F.rms_norm(states[..., -hidden:], (hidden,), lesson.norm, spec.norm_eps)
    return _Batch(embeds, states[..., :-hidden], target, counts)


def _losses(head: Head, batch: _Batch, rows: Tensor, weights: Sequence[float]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """By step that has a weight: its cross-entropy with the target's distribution, and where, [B, L], both prefer the
    same token. Rows that do not count, and those before which no draft can have begun, are left out.
    """
    steps = torch.arange(batch.counts.shape[1])
    with torch.no_grad():
        wanted = batch.target[batch.counts] @ rows.T
        probs, best = wanted.softmax(-1), wanted.argmax(-1)
    place = torch.full(batch.counts.shape, -1)
    place[batch.counts] = torch.arange(int(batch.counts.sum()))
    for step, x in enumerate(head(batch.embeds, batch.states, len(weights))):
        if not weights[step]:
            continue
        counts = batch.counts & (steps >= step)
        index = place[counts]
        logits = head.logits(x[counts], rows)
        loss = -(probs[index] * logits.log_softmax(-1)).sum(-1).mean()
        right = torch.zeros_like(batch.counts)
        right[counts] = logits.argmax(-1) == best[index]
        yield step, loss, right


@torch.no_grad()
def _test(head: Head, lesson: Lesson, course: Course) -> dict[str, Any]:
    """On texts that are not learned: the first step's loss, and of greedy drafts the share whose first n tokens are
    right. The sum of those, and one, is what a target forward would bring.
    """
    depth = course.depth * course.loops
    losses: list[float] = []
    right, drafts = np.zeros(depth), 0
    for i in range(0, len(lesson.features.texts), HELD_OUT):
        batch = _gather(lesson, [i], head.spec)
        kept = batch.counts
        for step, loss, same in _losses(head, batch, lesson.rows, [1.0] * depth):
            if step == 0:
                losses.append(float(loss))
                drafts += int(batch.counts.sum())
            kept = same & (kept if step == 0 else F.pad(kept[:, :-1], (1, 0)))
            right[step] += int(kept.sum())
    shares = (right / max(drafts, 1)).round(4).tolist()
    return {
        "test_loss": round(float(np.mean(losses)), 4),
        "right": shares,
        "expected_length": round(1 + sum(shares), 4),
    }

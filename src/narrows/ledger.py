"""What things cost: one definition each.

TTFT is from arrival to the first token. Decoding is what comes after it: tokens per second, and bytes per token, count
the tokens after the first and the steps that produced them. The bytes of a step are shared by those who caused them:
weights evenly by rows read, KV by entries seen. The bound is bandwidth / bytes per token; a share of the bound is speed
/ bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import zip_longest
from typing import Any

from .types import TARGET, Draft, ForwardOutput, StepPlan


@dataclass(slots=True)
class DraftMetrics:
    """What speculation brought one request, or all of them.

    A *step* is a target forward that chose tokens of a request, drafted or not. By position: of the tokens that
    drafts had there, how many were kept; a token behind one that was not kept counts as drafted and not as kept.
    """

    num_steps: int = 0
    num_tokens: int = 0  # chosen in these steps
    num_drafts: int = 0
    num_drafted: int = 0  # tokens tested, all branches of trees
    drafted: list[int] = field(default_factory=list)  # drafts that had a token there, by position
    accepted: list[int] = field(default_factory=list)
    seconds: float = 0  # of drafting, in the steps it was part of
    num_bytes: float = 0  # that draft models read for it
    reasons: dict[str, int] = field(default_factory=dict)  # why steps had no draft

    def observe(self, draft: Draft | None, num_accepted: int, num_tokens: int) -> None:
        """A step that tested a draft, or none, and of which `num_tokens` tokens were kept."""
        self.num_steps += 1
        self.num_tokens += num_tokens
        if draft is None:
            return
        self.num_drafts += 1
        self.num_drafted += len(draft.tokens)
        missing = draft.depth - len(self.drafted)
        self.drafted += [0] * missing
        self.accepted += [0] * missing
        for i in range(draft.depth):
            self.drafted[i] += 1
            self.accepted[i] += i < num_accepted

    @property
    def num_accepted(self) -> int:
        return sum(self.accepted)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens kept per target forward, its own choice included: plain decoding has 1."""
        return self.num_tokens / self.num_steps if self.num_steps else None

    def json(self) -> dict[str, object]:
        tokens, rates = max(self.num_tokens, 1), zip(self.accepted, self.drafted, strict=True)
        return {
            "acceptance_length": self.acceptance_length,
            "acceptance_by_position": [accepted / drafted for accepted, drafted in rates],
            "drafted_tokens": self.num_drafted,
            "accepted_tokens": self.num_accepted,
            "target_forwards_per_token": self.num_steps / tokens,
            "draft_seconds": self.seconds,
            "draft_bytes_per_token": self.num_bytes / tokens,
            "undrafted_steps": self.reasons,
        }

    def summary(self, seconds: float) -> str:
        """One line; `seconds` is the time of the target's forwards."""
        parts = [f"{self.acceptance_length or 1:.2f} tokens per target forward"]
        if self.num_drafts:
            shown = [f"{a / d:.0%}" for a, d in zip(self.accepted[:4], self.drafted[:4], strict=True)]
            parts.append(f"kept by position {' '.join(shown)}{' ...' if len(self.drafted) > 4 else ''}")
            parts.append(f"drafting {self.seconds / max(self.seconds + seconds, 1e-9):.0%} of the time")
        if self.reasons:
            reason = max(self.reasons, key=lambda reason: self.reasons[reason])
            parts.append(f"no draft in {sum(self.reasons.values())} of {self.num_steps} steps, mostly: {reason}")
        return "speculation: " + ", ".join(parts)


@dataclass(slots=True)
class RequestMetrics:
    """The life of one request. Times are monotonic seconds; byte counts are of its decoding."""

    arrival: float
    num_prompt: int
    num_cached: int = 0  # prompt tokens from the prefix cache
    num_output: int = 0
    num_preemptions: int = 0
    first_token: float | None = None
    last_token: float | None = None
    weight_bytes: float = 0
    kv_bytes: float = 0
    forward_seconds: float = 0  # of the steps it was part of, all of them
    drafts: DraftMetrics | None = None  # with a drafter

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first, per second since the first."""
        if self.first_token is None or self.last_token is None or self.last_token <= self.first_token:
            return None
        return (self.num_output - 1) / (self.last_token - self.first_token)

    @property
    def weight_bytes_per_token(self) -> float | None:
        return self.weight_bytes / (self.num_output - 1) if self.num_output > 1 else None

    @property
    def kv_bytes_per_token(self) -> float | None:
        return self.kv_bytes / (self.num_output - 1) if self.num_output > 1 else None

    def bound_share(self, bandwidth: float | None) -> float | None:
        """Share of the bound of a machine that reads `bandwidth` GB/s; for a request that had the machine to itself."""
        if bandwidth is None or self.tokens_per_second is None or self.num_output < 2:
            return None
        per_token = (self.weight_bytes + self.kv_bytes) / (self.num_output - 1)
        return self.tokens_per_second * per_token / (bandwidth * 1e9)

    def json(self, bandwidth: float | None = None) -> dict[str, object]:
        """Every figure by name, for result files and responses."""
        figures: dict[str, object] = {
            "prompt_tokens": self.num_prompt,
            "cached_tokens": self.num_cached,
            "output_tokens": self.num_output,
            "preemptions": self.num_preemptions,
            "ttft_seconds": self.ttft,
            "tokens_per_second": self.tokens_per_second,
            "weight_bytes_per_token": self.weight_bytes_per_token,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "forward_seconds": self.forward_seconds,
            "bandwidth_share": self.bound_share(bandwidth),
        }
        if self.drafts is not None:
            figures["speculation"] = self.drafts.json()
        return figures


@dataclass(slots=True)
class Ledger:
    """Totals of an engine since it started."""

    num_steps: int = 0
    num_read: int = 0  # tokens that went through the model
    num_output: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    weight_bytes: int = 0
    kv_bytes: int = 0
    forward_seconds: float = 0
    step_seconds: float = 0  # forward, drafting and everything around them
    drafts: DraftMetrics = field(default_factory=DraftMetrics)

    def record(self, plan: StepPlan, out: ForwardOutput) -> None:
        """Charges a step, before its cursors move, to the totals and to ``state["metrics"]`` of its requests."""
        num_tokens = plan.num_tokens
        self.num_steps += 1
        self.num_read += num_tokens
        self.weight_bytes += out.weight_bytes
        self.kv_bytes += out.kv_bytes
        self.forward_seconds += out.seconds
        seen = [n * (request.cursors[TARGET].num_read + (n + 1) / 2) for request, n in plan.items]
        total = sum(seen)
        for (request, n), entries in zip(plan.items, seen, strict=True):
            metrics: RequestMetrics = request.state["metrics"]
            metrics.forward_seconds += out.seconds
            if metrics.first_token is not None:
                metrics.weight_bytes += out.weight_bytes * n / num_tokens
                metrics.kv_bytes += out.kv_bytes * entries / total

    @property
    def python_seconds_per_step(self) -> float:
        """What a step costs besides its forward."""
        return (self.step_seconds - self.forward_seconds - self.drafts.seconds) / max(self.num_steps, 1)


def added(a: Any, b: Any) -> Any:
    """Two totals of a kind as one: numbers are summed, and so are the entries of lists, tables and records."""
    if is_dataclass(a):
        return replace(a, **{f.name: added(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)})  # type: ignore[type-var]
    if isinstance(a, dict):
        return {key: a.get(key, 0) + b.get(key, 0) for key in {**a, **b}}
    if isinstance(a, list):
        return [x + y for x, y in zip_longest(a, b, fillvalue=0)]
    return a + b


def summary(metrics: RequestMetrics, bandwidth: float | None = None) -> str:
    """One line on a request's cost, one on its speculation; `bandwidth` in GB/s adds the share of the bound."""
    parts = [f"{metrics.num_output} tokens"]
    if metrics.ttft is not None:
        parts.append(f"first after {metrics.ttft * 1e3:,.0f} ms")
    if metrics.tokens_per_second is not None and metrics.num_output > 1:
        parts.append(f"{metrics.tokens_per_second:,.1f} tokens/s")
        parts.append(
            f"{(metrics.weight_bytes_per_token or 0) / 1e6:,.1f} MB weights + "
            f"{(metrics.kv_bytes_per_token or 0) / 1e6:,.1f} MB KV per token"
        )
    share = metrics.bound_share(bandwidth)
    if share is not None:
        parts.append(f"{share:.0%} of the {bandwidth:,.1f} GB/s bound")
    if metrics.num_cached:
        parts.append(f"{metrics.num_cached} of {metrics.num_prompt} prompt tokens cached")
    line = ", ".join(parts)
    return line if metrics.drafts is None else f"{line}\n{metrics.drafts.summary(metrics.forward_seconds)}"

"""What things cost: one definition each.

TTFT is from arrival to the first token. Decoding is what comes after it: tokens per second, and bytes per token, count
the tokens after the first and the steps that produced them. The bytes of a step are shared by those who caused them:
weights evenly by rows read, KV by entries seen. The bound is bandwidth / bytes per token; a share of the bound is speed
/ bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from .types import TARGET, ForwardOutput, StepPlan


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

    def json(self, bandwidth: float | None = None) -> dict[str, float | int | None]:
        """Every figure by name, for result files and responses."""
        return {
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


@dataclass(slots=True)
class Ledger:
    """Totals of an engine since it started."""

    num_steps: int = 0
    num_read: int = 0  # tokens that went through the model
    num_output: int = 0
    num_cached: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_preemptions: int = 0
    weight_bytes: int = 0
    kv_bytes: int = 0
    forward_seconds: float = 0
    step_seconds: float = 0  # forward and everything around it

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
        return (self.step_seconds - self.forward_seconds) / max(self.num_steps, 1)


def summary(metrics: RequestMetrics, bandwidth: float | None = None) -> str:
    """One line about a request's cost; `bandwidth` in GB/s adds the share of the bound."""
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
    return ", ".join(parts)

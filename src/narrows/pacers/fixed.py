"""Always as many as there is room for: to compare with, and for tests that must not depend on the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Request
from .base import Costs, Pace


@dataclass(frozen=True, slots=True)
class Fixed:
    """Drafts up to what the drafter's own settings say."""

    def pace(self, requests: Sequence[Request], limits: Sequence[int], costs: Costs) -> list[Pace]:
        return [Pace(limit) for limit in limits]

"""How many channels a layer has at a width multiplier."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Rounding = Literal["round", "ceil"]

# Far above the error of a product of floats, far below any width in use: 7 % of 100 is 7, not 8.
CEIL_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Width:
    """A multiplier, and what becomes of fractions: `round` (FedHM's code) or `ceil` (HeteroFL's; methods.md 3.2)."""

    factor: float = 1.0
    rounding: Rounding = "round"

    def of(self, channels: int) -> int:
        """Channels of a layer that has `channels` at width 1; at least 1."""
        exact = channels * self.factor
        return max(1, round(exact) if self.rounding == "round" else math.ceil(exact - CEIL_TOLERANCE))

    def times(self, factor: float) -> Width:
        """The product, so that a model's own width and a tier's are rounded once."""
        return replace(self, factor=self.factor * factor)

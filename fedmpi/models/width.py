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
    """A share of a net's channels, and what becomes of fractions: `round` (FedHM's code) or `ceil` (HeteroFL's
    code). The net itself has `of_model` times the channels of its paper, rounded to the nearest."""

    factor: float = 1.0
    rounding: Rounding = "round"
    of_model: float = 1.0

    def of(self, channels: int) -> int:
        """Returns the channels of a layer that has `channels` in the paper; at least 1. A share of 1 is the net."""
        exact = max(1, round(channels * self.of_model)) * self.factor
        return max(1, round(exact) if self.rounding == "round" else math.ceil(exact - CEIL_TOLERANCE))

    def times(self, of_model: float) -> Width:
        """Returns the widths of the net whose own multiplier is `of_model`."""
        return replace(self, of_model=self.of_model * of_model)

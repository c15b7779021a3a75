"""What the closing table needs of the rounds so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Best:
    """Saved with each checkpoint."""

    last: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    best_round: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add_scores(self, round_number: int, accuracy: Mapping[str, float]) -> None:
        for tier, share in accuracy.items():
            self.last[tier] = share
            if share > self.best.get(tier, -1.0):
                self.best[tier], self.best_round[tier] = share, round_number

    def add_seconds(self, split_s: Mapping[str, float]) -> None:
        for stage, seconds in split_s.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

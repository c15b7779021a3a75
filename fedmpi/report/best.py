"""What the closing table needs of the rounds so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedmpi.report.records import Record, accuracies


@dataclass
class Best:
    """Saved with each checkpoint."""

    last: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    best_round: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def round_done(self, record: Record) -> None:
        for tier, share in accuracies(record).items():
            self.last[tier] = share
            if share > self.best.get(tier, -1.0):
                self.best[tier], self.best_round[tier] = share, record["round"]
        for stage, seconds in record["seconds"].items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def contradicts(self, records: Sequence[Mapping[str, Any]]) -> str:
        """Which of these records cannot be of the same run, and why; empty if all can be."""
        by_round = {record["round"]: record for record in records}
        for tier, number in self.best_round.items():
            scores = _scores(by_round.get(number, {}), tier)
            if scores and scores.get("accuracy") != self.best[tier]:
                return f"in round {number} the accuracy of {tier!r} is {scores.get('accuracy')}, not {self.best[tier]}"
        return ""


def _scores(record: Mapping[str, Any], tier: str) -> Mapping[str, Any]:
    """What a record says of a tier, or of the clients' own nets."""
    tiers = record.get("tiers")
    found = tiers.get(tier) if isinstance(tiers, Mapping) and tier in tiers else record.get(tier)
    return found if isinstance(found, Mapping) else {}

"""What the closing table needs of the rounds so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedmpi.report.records import CLIENTS, Record, accuracies


@dataclass
class Best:
    """Of each net and of the clients' own: the last accuracy, the highest, its first round. In each checkpoint."""

    last: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    best_round: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Best:
        """The rounds of a run, in their order."""
        found = cls()
        for record in records:
            found.round_done(record)
        return found

    def round_done(self, record: Record) -> None:
        for tier, share in accuracies(record).items():
            self.last[tier] = share
            if share > self.best.get(tier, -1.0):
                self.best[tier], self.best_round[tier] = share, record["round"]
        for stage, seconds in record.get("seconds", {}).items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def contradicts(self, records: Sequence[Mapping[str, Any]]) -> str:
        """Which of these records cannot be of the same run, and why; empty if all can be."""
        by_round = {record["round"]: record for record in records}
        for tier, number in self.best_round.items():
            record = by_round.get(number, {})
            tiers = record.get("tiers")
            scores = tiers.get(tier) if isinstance(tiers, Mapping) and tier in tiers else record.get(tier)
            if isinstance(scores, Mapping) and scores and scores.get("accuracy") != self.best[tier]:
                found = scores.get("accuracy", "missing")
                return f"in round {number} the accuracy of {tier!r} is {found}, not {self.best[tier]}"
        return ""


def mean_accuracy(record: Record) -> float | None:
    """Over the nets that were tested on the whole test set, else over the clients' own; None where none was tested."""
    tested = accuracies(record)
    shares = [share for name, share in tested.items() if name != CLIENTS] or [*tested.values()]
    return sum(shares) / len(shares) if shares else None


def best_round(means: Mapping[int, float | None], saved: Collection[int]) -> int | None:
    """The saved round with the highest `mean_accuracy` (ties: the first); None if none of them was tested."""
    known = [(mean, -number) for number in saved if (mean := means.get(number)) is not None]
    return -max(known)[1] if known else None

"""The last and the best accuracies of a run, and its seconds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fedmpi.report.records import CLIENTS, Record, accuracies


@dataclass
class Best:
    """The last accuracy of each net and of the clients' own, the highest one and its first round; seconds by stage."""

    last: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    best_round: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Best:
        """Sums up the rounds of a run, in their order."""
        best = cls()
        for record in records:
            best.round_done(record)
        return best

    def round_done(self, record: Record) -> None:
        for tier, share in accuracies(record).items():
            self.last[tier] = share
            if share > self.best.get(tier, -1.0):
                self.best[tier] = share
                self.best_round[tier] = record["round"]
        for stage, seconds in record.get("seconds", {}).items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


def mean_accuracy(record: Record) -> float | None:
    """Returns the mean over the nets that all clients share, else over the clients' own; None without a test."""
    tested = accuracies(record)
    shares = [share for name, share in tested.items() if name != CLIENTS] or [*tested.values()]
    return sum(shares) / len(shares) if shares else None


def best_round(means: Mapping[int, float | None], saved: Collection[int]) -> int | None:
    """Returns the saved round with the highest `mean_accuracy` (ties: the first); None if none was tested."""
    known = {number: mean for number, mean in means.items() if number in saved and mean is not None}
    return max(sorted(known), key=lambda number: known[number]) if known else None

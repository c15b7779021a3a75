"""The last and the best accuracies of a run, and its seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fedmpi.config.schema import Stop
from fedmpi.report.records import CLIENTS, Record, accuracies, score_name, scores_of


@dataclass
class Best:
    """The last accuracy of each net and of the clients' own, the highest one and its first round; seconds by stage."""

    last: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    best_round: dict[str, int] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)
    means: dict[int, float] = field(default_factory=dict)
    """Tested round -> the mean over the nets that all clients share; if there are none, over the clients' own."""
    largest: dict[int, float] = field(default_factory=dict)
    """Tested round -> the accuracy of the largest of these nets; if there are none, the mean over the clients' own."""
    score: str = "accuracy"
    """The name of these scores in records: `r2` of a regression."""

    @classmethod
    def of(cls, records: Iterable[Record]) -> Best:
        """Sums up the rounds of a run, in their order."""
        best = cls()
        for record in records:
            best.round_done(record)
        return best

    def round_done(self, record: Record) -> None:
        tested = accuracies(record)
        for tier, share in tested.items():
            self.last[tier] = share
            if share > self.best.get(tier, -math.inf):
                self.best[tier] = share
                self.best_round[tier] = record["round"]
        if tested:
            shares = [share for name, share in tested.items() if name != CLIENTS] or [*tested.values()]
            self.means[record["round"]] = sum(shares) / len(shares)
            self.largest[record["round"]] = shares[0]
            self.score = score_name(scores_of(record, next(iter(tested))))
        self.seconds.update(record.get("seconds", {}))

    def best_of(self, saved: Collection[int]) -> int | None:
        """Returns the saved round with the highest mean (ties: the first); None if none of them was tested."""
        return max(sorted(self.means.keys() & set(saved)), key=self.means.__getitem__, default=None)

    def split_s(self) -> dict[str, float]:
        """Returns the seconds by stage, with `other` for those of no stage."""
        split = {stage: seconds for stage, seconds in self.seconds.items() if stage != "wall"}
        return {**split, "other": max(0.0, self.seconds["wall"] - sum(split.values()))}

    def why_over(self, stop: Stop) -> str:
        """Returns why a run with these tests ends, '' if it goes on."""
        return why_over(stop, self.largest, self.score)


def why_over(stop: Stop, tests: Mapping[int, float], score: str = "accuracy") -> str:
    """Returns why a run with these tests (`Best.largest`, in the order of rounds) ends, '' if it goes on."""
    if not tests:
        return ""
    last = max(tests)
    if stop.accuracy and tests[last] >= stop.accuracy:
        return f"{score} {tests[last]:.4f} in round {last}, and stop.accuracy is {stop.accuracy:g}"
    best = max(tests, key=tests.__getitem__)
    if stop.patience and sum(number > best for number in tests) >= stop.patience:
        return f"no test after round {best} was better than its {tests[best]:.4f}, and stop.patience is {stop.patience}"
    return ""

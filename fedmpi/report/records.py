"""One line of JSON per round, and what the rounds of a run come to (`Best`).

`rounds.jsonl` is what reports, grids and people read. A resumed run takes back the rounds that its checkpoint does not
know, so the file reads as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedmpi.config.schema import Stop
from fedmpi.errors import counted
from fedmpi.report.terminal import warn
from fedmpi.store.files import json_safe, open_file, reading, write_atomic, writing
from fedmpi.store.run_dir import RunDir

Record = Mapping[str, Any]

TIERS = "tiers"
"""The key of the scores of each net that all clients share, in the record of a round that was tested."""
CLIENTS = "clients"
"""The key, and the closing table's row, of the clients' own nets on their own test data."""
NOT_RESULTS = frozenset({"seconds", "busy_s", "losses", "wire_bytes", "wire_messages", "exchange"})
"""Keys of a record that tell of time, ranks and what MPI moved: the same bits are alike without."""


class Records:
    """Appends the records of a run to `rounds.jsonl`.

    `resume_after` None starts afresh; n keeps the rounds up to n that are there, and warns of lost ones.
    """

    def __init__(self, run_dir: RunDir, *, resume_after: int | None) -> None:
        self._path = run_dir.records_path
        last_round = resume_after or 0
        records = [record for record in read_records(run_dir) if record["round"] <= last_round]
        if lacking := last_round - len(records):
            warn(f"{self._path.name} lacks {counted(lacking, 'round')}: sums over all rounds are not shown")
        write_atomic(self._path, "".join(map(_line, records)).encode())

    def round_done(self, record: Record) -> None:
        """Appends a record to the file, which must still be there. Raises RunDirError if it is not on disk."""
        line = _line(record).encode()
        with writing(self._path), open(open_file(self._path, os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def read_records(run_dir: RunDir) -> list[dict[str, Any]]:
    """Reads every whole record, in the order of rounds; of several of one round the last one. Empty without a file.

    A line that is no record, such as one that a kill has cut off, is left out. Raises RunDirError.
    """
    by_round: dict[int, dict[str, Any]] = {}
    path = run_dir.records_path
    with reading(path), open(open_file(path), "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict) and type(record.get("round")) is int and record["round"] > 0:
                    by_round[record["round"]] = record
    return [by_round[number] for number in sorted(by_round)]


def _line(record: Record) -> str:
    return json.dumps(json_safe(record), allow_nan=False) + "\n"


def rounds_done(records: Sequence[Record]) -> int:
    """Returns the last round that has a record; 0 for none."""
    return int(records[-1]["round"]) if records else 0


def is_whole(records: Sequence[Record]) -> bool:
    """Returns whether no round before the last one is missing: only then sums over the records are of all rounds."""
    return rounds_done(records) == len(records)


def net_scores(record: Record) -> dict[str, Mapping[str, float]]:
    """Returns name -> `accuracy` (or `r2`) and `loss` of each net that was tested on the whole test set."""
    return dict(record.get(TIERS, {}))


def scores_of(record: Record, name: str) -> Mapping[str, float]:
    """Returns accuracy, and loss where there is one, of a tier or of the clients' own nets; {} if it was not tested."""
    return (record.get(CLIENTS) if name == CLIENTS else net_scores(record).get(name)) or {}


def accuracies(record: Record) -> dict[str, float]:
    """Returns the accuracy (or r2) of each tested tier, and of the clients' own nets; {} if nothing was tested."""
    names = [*net_scores(record), *([CLIENTS] if CLIENTS in record else [])]
    return {name: score_of(scores_of(record, name)) for name in names}


def score_name(scores: Mapping[str, float]) -> str:
    """Returns the key of what a net is judged by: `accuracy`, or `r2` of a regression."""
    return "r2" if "r2" in scores else "accuracy"


def score_of(scores: Mapping[str, float]) -> float:
    """Returns the accuracy of a tested net, or its r2."""
    return scores[score_name(scores)]


def scalars(record: Record, prefix: str = "") -> Iterator[tuple[str, int | float]]:
    """Yields (tag, value) of every finite number in a record, `tiers/half/accuracy` for nested ones.

    `round` itself is the step; lists are left out.
    """
    for key, value in record.items():
        tag = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from scalars(value, f"{tag}/")
        elif type(value) in (int, float) and math.isfinite(value) and tag != "round":
            yield tag, value


def by_ranks(records: Sequence[Record]) -> list[int]:
    """Returns how many ranks did the rounds: several numbers where the run was resumed on others, or lost some."""
    return list(dict.fromkeys(len(record["busy_s"]) for record in records if record.get("busy_s")))


def incidents(records: Sequence[Record]) -> tuple[str, ...]:
    """Returns a line if clients diverged and contributed nothing, one if their last finite nets were taken, and one if
    rounds changed nothing: how often, and which clients or why.
    """
    lines = []
    total = sum(len(record.get("cohort") or ()) for record in records)
    for key, then in (("dropped", "they contributed nothing"), ("restored", "their last finite nets were taken")):
        diverged = [client for record in records for client in record.get(key) or ()]
        if diverged:
            names = textwrap.shorten(", ".join(map(str, sorted(set(diverged)))), 40, placeholder=" ...")
            often = f"{len(diverged):,} of {counted(total, 'training')}"
            lines.append(f"diverged: {often}, of clients {names}: {then} (train.on_divergence)")
    if idle := [record for record in records if "unchanged" in record]:
        first = f"the first: {idle[0]['round']}, {idle[0]['unchanged']}"
        lines.append(f"{len(idle)} of {counted(len(records), 'round')} changed nothing ({first})")
    return tuple(lines)


@dataclass
class Best:
    """What the records come to: the last accuracy of each net and of the clients' own, the highest one and its first
    round; seconds by stage.
    """

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
        if not self.largest:
            return ""
        last = max(self.largest)
        if stop.accuracy and self.largest[last] >= stop.accuracy:
            test = f"{self.score} {self.largest[last]:.4f} in round {last}"
            return f"{test}, and stop.accuracy is {stop.accuracy:g}"
        best = max(self.largest, key=self.largest.__getitem__)
        if stop.patience and sum(number > best for number in self.largest) >= stop.patience:
            test = f"no test after round {best} was better than its {self.largest[best]:.4f}"
            return f"{test}, and stop.patience is {stop.patience}"
        return ""

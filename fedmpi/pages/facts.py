"""What a page shows of one run, read from its run directory alone: nothing is imported or trained.

Damaged and missing files leave their part empty, with a note that says why.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedmpi.config import yaml_text
from fedmpi.data.partition import saved
from fedmpi.errors import RunDirError, UserError
from fedmpi.report.best import Best
from fedmpi.report.ending import Ending, ending, unless_all_saved
from fedmpi.report.lineage import Parent, lineage
from fedmpi.report.records import CLIENTS, Record, gaps_of, net_scores, read_records, rounds_done, scores_of
from fedmpi.store.files import read_json, read_whole
from fedmpi.store.manifest import read_starts, sizes, with_rounds
from fedmpi.store.run_dir import RunDir, meant, runs_below

Read = TypeVar("Read")
_MOST_NAMED = 4
"""Of more runs without a round, an error names so many and counts the others."""


@dataclass(frozen=True)
class Spectra:
    """Singular values of the server's factorized layers, by layer, largest first, and each tier's r in that layer."""

    values: Mapping[str, NDArray[np.float64]]
    r: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Facts:
    """One run. `config` is the resolved one, plain; accuracies are shares."""

    folder: Path
    config: Mapping[str, Any]
    config_text: str
    records: Sequence[Record]
    """Of the run's own rounds."""
    starts: Sequence[Mapping[str, Any]]
    tiers: Sequence[Mapping[str, Any]] = ()
    """The rows of the closing table; of a run that has none yet, what the manifest has of sizes, and accuracies."""
    time_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage, the mean over ranks."""
    sizes: NDArray[np.int64] | None = None
    """Training examples of each client, (clients,)."""
    classes: NDArray[np.int64] | None = None
    """Training examples of each client and class, (clients, classes)."""
    client_accuracy: NDArray[np.float64] | None = None
    spectra: Spectra | None = None
    inherited: Sequence[Record] = ()
    """Of the rounds of the run that it branches from; only curves show them."""
    parent: Parent | None = None
    """What it branches from."""
    ending: Ending | None = None
    """How it has ended, where it has rounds to go."""
    notes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    """Of the first run of a folder: lines about those of its runs that are left out."""

    @property
    def rounds(self) -> int:
        """How many rounds were asked for."""
        return int(self.config["rounds"])

    @property
    def done(self) -> int:
        """The last round on record, of its own or inherited."""
        return rounds_done(self.records or self.inherited)

    @property
    def working_starts(self) -> Sequence[Mapping[str, Any]]:
        """The starts that did rounds, or all starts if none did any."""
        return with_rounds(self.starts, self.done) or self.starts

    @property
    def is_finished(self) -> bool:
        return self.ending is None and self.done >= self.rounds

    @property
    def not_saved(self) -> str:
        """` (2 saved)`, behind the number of rounds done: where the run is to continue after another round."""
        return unless_all_saved(self.done, self.ending.saved) if self.ending else ""

    @property
    def tested(self) -> list[str]:
        """The names of what was tested: the clients' own nets, then tiers in the order of the records."""
        names = dict.fromkeys(name for record in self.records for name in net_scores(record))
        return [*([CLIENTS] if any(CLIENTS in record for record in self.records) else []), *names]

    def course(self, name: str, quantity: str = "accuracy") -> tuple[list[int], list[float]]:
        """The rounds in which `name` was tested, and its accuracy or loss in them."""
        return _course(self.records, name, quantity)

    def course_before(self, name: str, quantity: str = "accuracy") -> tuple[list[int], list[float]]:
        """`course` of the inherited rounds."""
        return _course(self.inherited, name, quantity)

    def cumulated(self, *keys: str) -> tuple[list[int], NDArray[np.float64]]:
        """The sum by round of these keys of all records up to that round."""
        per_round = [sum(float(record[key]) for key in keys) for record in self.records]
        return [record["round"] for record in self.records], np.cumsum(per_round)


def _course(records: Sequence[Record], name: str, quantity: str) -> tuple[list[int], list[float]]:
    found = [(record["round"], scores_of(record, name).get(quantity)) for record in records]
    pairs = [(number, value) for number, value in found if value is not None]
    return [number for number, _ in pairs], [value for _, value in pairs]


def read_all(paths: Sequence[Path]) -> list[Facts]:
    """Reads each path: a run, or all runs in a folder that have done a round. A run in a folder whose config is damaged
    is left out, and so is one without a round; the folder's first run has a line (`beside`) that says so.

    Raises RunDirError where there is none.
    """
    found: list[Facts] = []
    for path in paths:
        if RunDir(path).has_config():
            found.append(read(path))
            continue
        if not os.path.isdir(path):  # False, too, of a name too long
            raise RunDirError(str(path), f"is not a folder; name a run's folder, or a folder of runs{meant(path)}")
        inner, damaged = _read_below(path)
        if damaged and not inner:
            raise damaged[0]
        if not inner:
            raise RunDirError(str(path), "holds no run (no config.yaml), nor does a folder in it; name a run's folder")
        empty = [facts for facts in inner if not facts.records]
        if not (begun := [facts for facts in inner if facts.records]):
            named = "; ".join(map(_nothing_to_show, empty[:_MOST_NAMED]))
            more = f"; and {len(empty) - _MOST_NAMED} more" if len(empty) > _MOST_NAMED else ""
            raise RunDirError(str(path), f"holds runs, but none has done a round yet: {named}{more}")
        beside = [*(error.text() for error in damaged), *map(_nothing_to_show, empty)]
        begun[0] = replace(begun[0], beside=(*begun[0].beside, *(f"left out: {line}" for line in beside)))
        found += begun
    return found


def _nothing_to_show(run: Facts) -> str:
    happened = f" {run.ending.briefly()}, and" if run.ending else ""
    return f"{run.folder.name}{happened} has no round of its own"


def _read_below(folder: Path) -> tuple[list[Facts], list[RunDirError]]:
    """The runs in a folder, and why others cannot be read."""
    found, damaged = [], []
    for run in runs_below(folder):
        if run.has_config():
            try:
                found.append(read(run.path))
            except RunDirError as error:
                damaged.append(error)
    return found, damaged


def _config(run_dir: RunDir) -> tuple[dict[str, Any], str]:
    """The run's config as its file says it, and its text. Raises RunDirError where it is damaged, or where no run has
    begun.
    """
    content = read_whole(run_dir.config_path)
    if content is None:
        raise RunDirError(str(run_dir.path), "holds no run (no config.yaml)")
    text = content.decode(errors="replace")
    try:
        config = yaml_text.parse(text).value
    except yaml_text.YamlError as error:
        raise RunDirError(str(run_dir.config_path), f"is damaged: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("rounds"), int):
        raise RunDirError(str(run_dir.config_path), "is no run's config: rounds are missing")
    return config, text


def read(folder: Path) -> Facts:
    """Raises RunDirError where no run has begun, or its config is damaged."""
    run_dir = RunDir(folder)
    notes: list[str] = []

    def whole(read: Callable[[], Read], instead: Read) -> Read:
        try:
            return read()
        except UserError as error:
            notes.append(error.text())
            return instead

    config, config_text = _config(run_dir)
    nothing: list[dict[str, Any]] = []
    records = whole(lambda: read_records(run_dir), nothing)
    if gaps := gaps_of(records, rounds_done(records)):
        notes.append(
            f"rounds.jsonl has no record of rounds {gaps[0][0]} to {gaps[0][1]}; sums leave missing rounds out"
        )
    summary = whole(lambda: read_json(run_dir.report_dir / "summary.json"), None)
    found = lineage(records)
    best = Best.of(found.own)
    is_finished = _is_finished(run_dir, config["rounds"], records, summary)
    # What an earlier end has written is no longer true of a run that was given more rounds.
    summary = summary if isinstance(summary, dict) and is_finished else {}
    starts = whole(lambda: read_starts(run_dir), nothing)
    return Facts(
        folder=folder,
        config=config,
        config_text=config_text,
        records=found.own,
        inherited=found.inherited,
        parent=found.parent,
        ending=None if is_finished else whole(lambda: ending(run_dir, records), None),
        starts=starts,
        tiers=_tiers(summary, best, sizes(starts), is_branch=found.parent is not None),
        time_s=summary.get("time_s") or _time_s(best),
        sizes=whole(lambda: saved(run_dir.partition_path)[0].sizes, None),
        client_accuracy=_client_accuracy(run_dir) if is_finished else None,
        notes=tuple(notes),
    )


def _is_finished(run_dir: RunDir, rounds: int, records: Sequence[Record], summary: object) -> bool:
    """Whether all rounds are on record and saved: a run may have been killed between its last record and the save. Who
    has a summary has finished; its checkpoints may be gone.
    """
    return rounds_done(records) >= rounds and (summary is not None or run_dir.last_saved() >= rounds)


def _tiers(
    summary: Mapping[str, Any], best: Best, sized: Sequence[Mapping[str, Any]], *, is_branch: bool
) -> list[Mapping[str, Any]]:
    rows = [row for row in summary.get("tiers") or () if row["name"] != CLIENTS]
    if rows and not is_branch:
        return rows
    # An older version counted the rounds of a branch's parent in, too.
    last, highest, at = best.last.get, best.best.get, best.best_round.get
    known = [row["name"] for row in sized]
    rows = rows or [*sized, *({"name": name} for name in best.last if name not in (CLIENTS, *known))]
    return [
        {**row, "accuracy_last": last(name), "accuracy_best": highest(name), "best_round": at(name)}
        for row in rows
        for name in [row["name"]]
    ]


def _time_s(best: Best) -> dict[str, float]:
    total = {**best.seconds}
    wall_s = total.pop("wall", 0.0)
    return {**total, "other": max(0.0, wall_s - sum(total.values()))}


def _client_accuracy(run_dir: RunDir) -> NDArray[np.float64] | None:
    content = read_whole(run_dir.report_dir / "clients.csv")
    rows = list(csv.DictReader(io.StringIO(content.decode()))) if content else []
    return np.array([float(row["accuracy"]) for row in rows]) if rows else None

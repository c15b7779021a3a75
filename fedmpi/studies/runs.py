"""From the folders of runs to the rows of one table, for `jobs/compare.py`.

A run counts when it is finished: all rounds are recorded and its report is written. Everything is
read from the runs themselves, so a table can be made again at any time. Accuracies are shares.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.data.digest import short
from fedmpi.errors import RunDirError
from fedmpi.report.records import CLIENTS, Record, gaps_of, read_records, rounds_done
from fedmpi.store.files import read_json
from fedmpi.store.manifest import read_starts
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import si, size

_RUN_FOLDER = re.compile(r"(.+)-seed(\d{1,18})")


@dataclass(frozen=True)
class Run:
    """A run's folder, of one method (`name` is its config's) and one seed; it need not be finished, nor even begun."""

    name: str
    seed: int
    folder: RunDir

    @cached_property
    def config(self) -> Config:
        """The config it was begun with."""
        return load(self.folder.config_path, ())

    @property
    def method(self) -> str:
        """What the table calls it: `fedhm` for `fedhm_digits`."""
        return self.name.removesuffix(f"_{self.config.data.name}")

    @property
    def records(self) -> list[dict[str, Any]]:
        return read_records(self.folder)

    @property
    def nets(self) -> list[dict[str, Any]]:
        """The rows of its closing table."""
        path = self.folder.report_dir / "summary.json"
        try:
            return [net for net in read_json(path)["tiers"] if net["name"] != CLIENTS]
        except (TypeError, KeyError):
            raise RunDirError(str(path), "is no report; --resume writes it again") from None

    @property
    def data_digest(self) -> str:
        """Of the examples that it was computed with; empty if the run does not say."""
        found = [start.get("data_digest") for start in read_starts(self.folder)]
        return next((digest for digest in reversed(found) if isinstance(digest, str)), "")

    def has_begun(self) -> bool:
        return self.folder.config_path.exists()

    def is_finished(self) -> bool:
        """The report is the last thing that a run writes."""
        has_report = (self.folder.report_dir / "summary.json").exists()
        return has_report and rounds_done(self.records) == self.config.rounds


def missing_rounds(records: Sequence[Record]) -> str:
    """`no records of 5 rounds, the first of which is 3`: for a note on a run; empty if all are there."""
    gaps = gaps_of(records, rounds_done(records))
    count = sum(last - first + 1 for first, last in gaps)
    return f"no records of {count} round{'s' * (count > 1)}, the first of which is {gaps[0][0]}" if gaps else ""


def runs_in(out: Path) -> list[Run]:
    """All that were begun in this folder."""
    folders = sorted(out.iterdir()) if out.is_dir() else []
    runs = [Run(name[1], int(name[2]), RunDir(folder)) for folder in folders
            if (name := _RUN_FOLDER.fullmatch(folder.name))]  # fmt: skip
    return [run for run in runs if run.has_begun()]


def other_data(runs: Iterable[Run]) -> list[str]:
    """A line for each data set of which these runs had different examples, though their configs ask for the same."""
    names: dict[str, dict[str, list[str]]] = {}
    for run in dict.fromkeys(runs):
        if run.data_digest:
            asked = json.dumps({**run.config.to_dict()["data"], "root": None}, sort_keys=True)
            names.setdefault(asked, {}).setdefault(run.data_digest, []).append(run.folder.path.name)
    return [
        f"careful: these runs had different data of the same name: {'; '.join(map(_who, digests, digests.values()))}"
        for digests in names.values()
        if len(digests) > 1
    ]


def _who(digest: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more} (digest {short(digest)})"


def settings_of(out: Path) -> dict[str, Any]:
    """What its runs have in common (`scale`, `set`), its table's `target`, its `methods` in order (names of runs) and
    the `commands` that made them; empty for a folder without."""
    found = read_json(out / "settings.json")
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Budget:
    """What the plan says of one run of a method: its compute, and the mean net of its clients."""

    examples: float
    """Passed forward and backward by all clients in all rounds."""
    training_macs: float
    mean_params: float
    mean_macs: float


@dataclass(frozen=True)
class Row:
    """A line of the table, exact: a net of a method, all its clients' own nets, or a run that is not finished.

    Means and sample standard deviations are over the finished seeds (a single one has no deviation); those of what it
    takes to reach the target over the `seeds_at_target` that do.
    """

    method: str
    tier: str
    status: str = ""
    """Empty, `untested`, or why there is no result."""
    seeds: int = 0
    accuracy: float | None = None
    accuracy_std: float | None = None
    best_accuracy: float | None = None
    best_accuracy_std: float | None = None
    clients_std: float | None = None
    """Of the accuracy over clients, in the last round."""
    clients_worst_decile: float | None = None
    params: float | None = None
    macs: float | None = None
    seeds_at_target: int = 0
    bytes_to_target: float | None = None
    macs_to_target: float | None = None
    rounds_to_target: float | None = None

    def cells(self) -> tuple[str, ...]:
        of = f" ({self.seeds_at_target} of {self.seeds})" if 0 < self.seeds_at_target < self.seeds else ""
        rounds = "-" if self.rounds_to_target is None else f"{self.rounds_to_target:.4g}"
        to_target = size(self.bytes_to_target), si(self.macs_to_target), rounds
        return (
            self.method, self.tier, self.status or _percent(self.accuracy, self.accuracy_std),
            si(self.params), si(self.macs), *(cell if cell == "-" else cell + of for cell in to_target),
        )  # fmt: skip


def _percent(share: float | None, std: float | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share:.2f} %" if std is None else f"{100 * share:.2f} ± {100 * std:.2f} %"


# What it takes to reach the target.


def accuracy_of(record: Record, tier: str) -> float | None:
    """None in a round without evaluation."""
    scores = record.get(CLIENTS) if tier == CLIENTS else record["tiers"].get(tier)
    return None if scores is None else scores["accuracy"]


def to_target(records: Sequence[Record], tier: str, target: float) -> tuple[int, float, int] | None:
    """Bytes, MACs and rounds up to and with the first round whose accuracy is `target` or more; None if none is, or if
    the record of a round before it is missing."""
    moved, macs = 0, 0.0
    for number, record in enumerate(records, 1):
        if record["round"] != number:
            return None
        moved += record["protocol_down_bytes"] + record["protocol_up_bytes"]
        macs += record["training_macs"]
        accuracy = accuracy_of(record, tier)
        if accuracy is not None and accuracy >= target:
            return moved, macs, record["round"]
    return None


def mean_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation (n - 1), None where there are too few values."""
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


# Rows.


def rows_of(
    runs: Sequence[Run], target: float, budget: Budget | None, *, failed: Collection[Run] = ()
) -> Iterator[Row]:
    """The rows of one method, `budget` None if no run is finished; the other runs have failed or are unfinished."""
    done = [run for run in runs if run.is_finished()]
    method = next((run.method for run in runs if run.has_begun()), runs[0].name)
    if done and budget is not None:
        histories = [run.records for run in done]
        last = histories[0][-1]
        has_clients = CLIENTS in last
        for net in done[0].nets:
            row = Row(method, net["name"], params=net["params"], macs=net["macs"])
            if net["name"] in last["tiers"]:
                yield _scored(row, histories, target)
            elif not has_clients:
                yield replace(row, status="untested", seeds=len(done))
        if has_clients:
            row = Row(method, CLIENTS, params=budget.mean_params, macs=budget.mean_macs)
            yield _scored(row, histories, target)
    for run in runs:
        if run not in done:
            of = (
                f"after {rounds_done(run.records)} of {run.config.rounds} rounds"
                if run.has_begun()
                else "before it began"
            )
            yield Row(method, f"seed {run.seed}", f"{'failed' if run in failed else 'unfinished'} {of}")


def _scored(row: Row, histories: Sequence[Sequence[Record]], target: float) -> Row:
    tier = row.tier
    evaluations = [[accuracy_of(record, tier) for record in records] for records in histories]
    accuracies = [[accuracy for accuracy in of_run if accuracy is not None] for of_run in evaluations]
    last, last_std = mean_std([scores[-1] for scores in accuracies])
    best, best_std = mean_std([max(scores) for scores in accuracies])
    reached = [found for records in histories if (found := to_target(records, tier, target))]
    moved, macs, rounds = (mean_std(values)[0] for values in zip(*reached, strict=True)) if reached else (None,) * 3
    clients = [records[-1][CLIENTS] for records in histories] if tier == CLIENTS else []
    return replace(
        row, seeds=len(histories), accuracy=last, accuracy_std=last_std,
        best_accuracy=best, best_accuracy_std=best_std,
        clients_std=mean_std([scores["std"] for scores in clients])[0],
        clients_worst_decile=mean_std([scores["worst_decile"] for scores in clients])[0],
        seeds_at_target=len(reached), bytes_to_target=moved, macs_to_target=macs, rounds_to_target=rounds,
    )  # fmt: skip


def budget_of(config: Config) -> Budget:
    """What `--plan` says of this config."""
    from fedmpi import methods
    from fedmpi.run.forecast import forecast
    from fedmpi.run.start import blocks, method_context

    info = config.data.info()
    plan = forecast(config, 1, info, methods.create(method_context(config, info)), blocks(config))
    clients = sum(tier.clients for tier in plan.tiers)
    return Budget(
        examples=sum(tier.client_rounds * tier.training_examples for tier in plan.tiers),
        training_macs=plan.training_macs_per_run,
        mean_params=sum(tier.clients * tier.params for tier in plan.tiers) / clients,
        mean_macs=sum(tier.clients * tier.macs for tier in plan.tiers) / clients,
    )

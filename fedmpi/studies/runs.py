"""A run as its folder shows it: config, records, results; and what several runs say together.

A run counts when it is finished: all rounds are recorded and its report is written. Everything is
read from the runs themselves, so a table can be made again at any time. Accuracies are shares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedmpi import registry
from fedmpi.config.fields import DATA_PLACES
from fedmpi.config.load import read_tree
from fedmpi.config.schema import Config
from fedmpi.data.dataset import short_digest
from fedmpi.errors import RunDirError, counted
from fedmpi.report.records import CLIENTS, Record, gaps_of, read_records, rounds_done
from fedmpi.results import run as results
from fedmpi.results.evidence import mean_std
from fedmpi.results.run import accuracy_of, moved, to_target
from fedmpi.running.folder import config_of
from fedmpi.store.files import read_json
from fedmpi.store.manifest import read_starts
from fedmpi.store.run_dir import RunDir

__all__ = ["accuracy_of", "mean_std", "moved", "to_target"]
_RUN_FOLDER = re.compile(r"(.+)-seed(\d{1,18})")


@dataclass(frozen=True)
class Run:
    """A run's folder, of one method (`name` is its config's) and one seed; it need not be finished, nor even begun."""

    name: str
    seed: int
    folder: RunDir

    @cached_property
    def said(self) -> dict[str, Any]:
        """The config that it was begun with, as its file says it; imports nothing. Raises `UserError`."""
        path = str(self.folder.config_path)
        match read_tree(path, path).values:
            case {"rounds": int(), "data": {"name": str()}} as values:
                return values
        raise RunDirError(path, "is no run's config: rounds or data.name are missing")

    def config(self, named: Collection[str] = ()) -> Config:
        """The config that it was begun with. Raises `ConfigError` where it names code in full, as
        `method.name=package.module:Class`, and the user's own words `named` do not: a folder alone imports nothing.
        """
        names = [f"{section}.name={self.said.get(section, {}).get('name')}" for section in registry.BUILT_IN]
        return config_of(self.folder, [name for name in names if name in named])

    @property
    def rounds(self) -> int:
        """The number of rounds that it was asked for."""
        return int(self.said["rounds"])

    @property
    def method(self) -> str:
        """What the table calls it: `fedhm` for `fedhm_digits`."""
        return self.name.removesuffix(f"_{self.said['data']['name']}")

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
        """The digest of the examples that it was computed with; empty if the run does not say."""
        found = [start.get("data_digest") for start in read_starts(self.folder)]
        return next((digest for digest in reversed(found) if isinstance(digest, str)), "")

    def has_begun(self) -> bool:
        return self.folder.has_config()

    def is_finished(self) -> bool:
        return results.Run(self.folder.path).is_finished()

    def history(self) -> History | None:
        """What it has done so far; None for a run that has no round yet."""
        records = self.records if self.has_begun() else []
        return History(self, records, self.is_finished()) if records else None


@dataclass(frozen=True)
class History:
    """A run that has begun: its records, and whether all of it is done."""

    run: Run
    records: Sequence[Record]
    is_finished: bool


def runs_in(out: Path) -> list[Run]:
    """All that were begun in this folder."""
    folders = sorted(out.iterdir()) if out.is_dir() else []
    named = [(name, folder) for folder in folders if (name := _RUN_FOLDER.fullmatch(folder.name))]
    runs = (Run(name[1], int(name[2]), RunDir(folder)) for name, folder in named)
    return [run for run in runs if run.has_begun()]


def missing_rounds(records: Sequence[Record]) -> str:
    """`no records of 5 rounds, the first of which is 3`: for a note on a run; empty if all are there."""
    gaps = gaps_of(records, rounds_done(records))
    count = sum(last - first + 1 for first, last in gaps)
    return f"no records of {counted(count, 'round')}, the first of which is {gaps[0][0]}" if gaps else ""


def other_data(runs: Iterable[Run]) -> list[str]:
    """A line for each data set of which these runs had different examples, though their configs ask for the same."""
    names: dict[str, dict[str, list[str]]] = {}
    for run in dict.fromkeys(runs):
        if run.data_digest:
            asked = json.dumps({**run.said["data"], **dict.fromkeys(DATA_PLACES)}, sort_keys=True)
            names.setdefault(asked, {}).setdefault(run.data_digest, []).append(run.folder.path.name)
    return [
        f"careful: these runs had different data of the same name: {'; '.join(map(_who, digests, digests.values()))}"
        for digests in names.values()
        if len(digests) > 1
    ]


def _who(digest: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more} (digest {short_digest(digest)})"

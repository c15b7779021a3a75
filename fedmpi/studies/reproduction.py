"""From the name of a table or figure to the runs that it needs, for `jobs/reproduce.py`.

A run's folder is named by its config, by what is set on it and by its seed, and lies in one folder
with those of all tables, so that a run which two tables need is made once.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedmpi import papers
from fedmpi.config import explain
from fedmpi.config.address import CONFIGS, label
from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.arguments import number, short
from fedmpi.studies.launch import Job, planned, scaled, scaled_milestones
from fedmpi.studies.runs import Run


@dataclass(frozen=True)
class Budget:
    """What the numbers of rounds and of local epochs are multiplied by; none of them falls below 1."""

    rounds: float = 1.0
    epochs: float = 1.0

    @classmethod
    def read(cls, text: str) -> Budget:
        """`0.05`, or `rounds=0.05,epochs=0.1`; for argparse."""
        parts = text.split(",") if "=" in text else [f"rounds={text}", f"epochs={text}"]
        shares = dict(part.partition("=")[::2] for part in parts)
        if not set(shares) <= {"rounds", "epochs"} or len(shares) < len(parts):
            raise argparse.ArgumentTypeError(f"expected a number, or rounds=0.05,epochs=0.1, got {text!r}")
        return cls(**{name: number(float, 0)(share) for name, share in shares.items()})

    @property
    def changed(self) -> dict[str, float]:
        """The shares that are not 1."""
        return {name: share for name, share in asdict(self).items() if share != 1}

    @property
    def text(self) -> str:
        """The text as on the command line, exact."""
        return f"rounds={self.rounds!r},epochs={self.epochs!r}"

    def lost_steps(self, config: Config) -> tuple[int, int]:
        """How many of a config's steps of the learning rate there is no round left for, and how many it has."""
        rounds = max(1, round(self.rounds * config.rounds))
        milestones = getattr(config.train.schedule, "milestones", ())
        pairs = zip(milestones, scaled_milestones(config, self.rounds), strict=True)
        moved = [now for before, now in pairs if before < config.rounds]
        return sum(now >= rounds for now in moved), len(moved)

    def overrides(self, config: Config) -> list[str]:
        changed = scaled(config, self.rounds)
        epochs = max(1, round(self.epochs * config.train.local_epochs))
        return changed + ([f"train.local_epochs={epochs}"] if epochs != config.train.local_epochs else [])

    def __str__(self) -> str:
        if not self.changed:
            return "the paper's numbers of rounds and local epochs"
        said = (f"{name.replace('epochs', 'local epochs')} x {share:g}" for name, share in self.changed.items())
        return f"a budget of {', '.join(said)} of the paper's, at least 1 each"


@dataclass(frozen=True)
class Named:
    """A table or figure and how it is called on the command line, `fedhm:table3`."""

    paper: papers.Paper
    table: papers.Table
    file: Path | None = None
    """A file of one's own; None for one of `papers.PAPERS`."""

    @property
    def name(self) -> str:
        """`fedhm:table3`; `fedhm.yaml:table3` for a file of one's own, which may be called as one of the papers."""
        return f"{self.file.name if self.file else self.paper.name}:{self.table.name}"


def every() -> Iterator[Named]:
    """All tables and figures of all papers."""
    for paper in map(papers.read, papers.PAPERS):
        yield from (Named(paper, table) for table in paper.tables.values())


def find(name: str) -> Named:
    """`fedhm:table3`, or a table of a file of one's own: `my.yaml:table1`. Raises `UserError`."""
    of_paper, colon, of_table = name.rpartition(":")
    if not colon:
        raise ConfigError(
            "command line", f"expected PAPER:TABLE, as fedhm:table3, got {explain.found(name)}; see --list"
        )
    file = Path(of_paper).resolve() if of_paper.endswith((".yaml", ".yml")) else None
    if file is None and of_paper not in papers.PAPERS:
        known = f"Known: {', '.join(papers.PAPERS)}, or a YAML file"
        text = f"no paper {explain.found(of_paper)}.{explain.suggest(of_paper, papers.PAPERS)} {known}"
        raise ConfigError("command line", text)
    paper = papers.read(of_paper) if file is None else papers.read_file(Path(of_paper))
    if of_table not in paper.tables:
        known = f"Known: {', '.join(paper.tables)}"
        text = f"{paper.name} has no {explain.found(of_table)}.{explain.suggest(of_table, paper.tables)} {known}"
        raise ConfigError("command line", text)
    return Named(paper, paper.tables[of_table], file)


def chosen(table: papers.Table, only: Sequence[str]) -> list[papers.Cell]:
    """The cells that have all words of one of the texts, in whatever case; all cells without texts."""
    return [cell for cell in table.cells if not only or any(_holds(cell, text) for text in only)]


def _holds(cell: papers.Cell, text: str) -> bool:
    """Words as a whole: `cifar-10` is not in CIFAR-100 and `iid` not in Non-IID, but `cifar10` is in
    table3_cifar10_iid."""
    run = () if cell.run is None else (cell.run.config.rpartition("/")[2], *cell.run.overrides)
    said = " ".join((cell.block, cell.column, cell.row, *run)).lower()
    return all(re.search(rf"(?<![a-z0-9-]){re.escape(word)}(?![a-z0-9])", said) for word in text.lower().split())


def baseline_of(table: papers.Table, cell: papers.Cell) -> papers.Cell | None:
    """The cell that this one is compared with: of the same block, its column (or, in this column, its row) is the
    table's `baseline`; the one of this row where several are."""
    if not table.baseline:
        return None
    block = [other for other in table.cells if other.block == cell.block and other.run is not None]
    found = [other for other in block if other.column == table.baseline]
    found = found or [other for other in block if (other.column, other.row) == (cell.column, table.baseline)]
    return next((other for other in found if other.row == cell.row), found[0] if found else None)


def runs_of(table: papers.Table, cells: Sequence[papers.Cell]) -> list[papers.Run]:
    """What these cells and those that they are compared with need, each once, in the paper's order."""
    compared = [baseline_of(table, cell) for cell in cells]
    needed = {cell.run for cell in [*cells, *compared] if cell is not None and cell.run is not None}
    return [run for run in table.runs if run in needed]


@dataclass(frozen=True)
class Request:
    """How runs are made: what is set on all of them, with which budget, and where they and their data are."""

    out: Path
    budget: Budget = Budget()
    changed: tuple[str, ...] = ()
    """Each key once, in order: `changes`."""
    data_dir: Path | None = None

    @property
    def runs_dir(self) -> Path:
        return self.out / "runs"

    @property
    def made_with(self) -> str:
        """The budget and what is set, in words; empty for the paper's own runs."""
        changed = f"set on all: {' '.join(self.changed)}" if self.changed else ""
        return "; ".join(filter(None, [str(self.budget) if self.budget.changed else "", changed]))

    def table_dir(self, named: Named) -> Path:
        """Where the table goes; another one for each budget and setting, so that none is taken for the paper's."""
        return self.out / self._folder(named.name.replace(":", "-"))

    def name_of(self, run: papers.Run) -> str:
        """Different for different runs; data sets may move."""
        config = str(Path(run.config).with_name(label(run.config))).strip("/").replace("/", "-")
        return self._folder(config, *run.overrides)

    def _folder(self, *parts: str) -> str:
        """A folder's name: these parts, and what is changed."""
        shares = (f"{name}_x{share:g}" for name, share in self.budget.changed.items())
        return short("-".join(re.sub(r"[^\w.=,-]+", "_", part) for part in (*parts, *self.changed, *shares)))

    def run_of(self, run: papers.Run, seed: int) -> Run:
        name = self.name_of(run)
        return Run(name, seed, RunDir(self.runs_dir / f"{name}-seed{seed}"))

    def begun(self, run: papers.Run, seeds: Sequence[int] | None = None) -> list[Run]:
        """Its runs that are there, those of these seeds only if any are given."""
        name = self.name_of(run)
        found = (folder.name.removeprefix(f"{name}-seed") for folder in self.runs_dir.glob("*-seed*"))
        there = sorted(int(seed) for seed in found if seed.isdecimal())
        runs = (self.run_of(run, seed) for seed in there if seeds is None or seed in seeds)
        return [run for run in runs if run.has_begun()]

    def lost_steps(self, run: papers.Run) -> tuple[int, int]:
        """The steps of the learning rate that the budget leaves no round for, and all."""
        if self.budget.rounds == 1:
            return 0, 0
        return self.budget.lost_steps(load(CONFIGS / run.config, [*run.overrides, *self.changed]))

    def job_of(self, run: papers.Run, seed: int) -> Job:
        """Raises `UserError`, also for a folder with another config's run."""
        path, given = CONFIGS / run.config, [*run.overrides, *self.changed, f"seed={seed}"]
        config = load(path, given)
        if self.data_dir is not None and hasattr(config.data, "root"):
            given.append(f"data.root={json.dumps(str(self.data_dir))}")
        try:
            return planned(self.run_of(run, seed), path, [*given, *self.budget.overrides(config)])
        except ConfigError as error:  # without the budget it is one that can be run
            raise ConfigError(f"{run.config} with --budget {self.budget.text}", *error.problems) from None

"""A run as a value: what its directory shows, and its trained nets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, InstanceOf
from torch import nn

from fedmpi.data.partition import Partition
from fedmpi.data.show import class_counts
from fedmpi.errors import ConfigError, UserError
from fedmpi.export import measure
from fedmpi.export.command import write
from fedmpi.export.formats import FormatName, format_of
from fedmpi.export.nets import TrainedNet, cut_net, net_of, tier_name
from fedmpi.export.saved import Round, SavedRound, chosen_round, saved_round
from fedmpi.library.boundary import checked, restore_process_state
from fedmpi.report.records import CLIENTS, scalars
from fedmpi.report.table_text import markdown_lines
from fedmpi.results import run as reader
from fedmpi.results.show import figure_of
from fedmpi.store.files import user_path
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

StrPath = Annotated[str | os.PathLike[str], AfterValidator(user_path)]
"""A path; `~` is the home folder."""


@dataclass(frozen=True)
class Score:
    """A test after one round. `accuracy` is a share (r2 of a regression); of the clients' own nets it is the mean, and
    `loss` is None."""

    round: int
    accuracy: float
    loss: float | None = None
    """The mean over the examples."""
    num_tested: int | None = None
    """Test examples, from the run's records; None of the clients' own nets."""


@dataclass(frozen=True)
class Scores:
    """The tests of one net: after the last tested round, and the highest accuracy (of equals the first)."""

    last: Score
    best: Score


@dataclass(frozen=True, repr=False)
class Clients(Partition):
    """Whose the training examples are: `client(i)` has example numbers, int64, `sizes` how many each client has."""

    classes: NDArray[np.int64]
    """Number of examples by client and class, (clients, classes); one column where targets are no classes."""


class Run(reader.Run):
    """A run's directory, which is never written. Each value is read once; `open_run` reads anew. Everything raises
    RunDirError where this machine sees no run there.
    """

    @property
    def dir(self) -> RunDir:
        return RunDir.of_run(self.path)

    def rounds(self, columns: str = "") -> list[dict[str, int | float]]:
        """Returns a row for each round, with every number of its record, `tiers/0.5/accuracy` for nested ones.

        `columns` keeps one group of them: `tiers`, `clients`, `method`, `seconds`, `busy_s`, or `round` for those that
        are not nested. Rows differ in their keys where a round was not tested. `pandas.DataFrame(run.rounds())` takes
        them as they are. Raises ConfigError for a group that no round has.
        """
        rows: list[dict[str, int | float]] = []
        groups = set()
        for record in self.records:
            row: dict[str, int | float] = {"round": record["round"]}
            for key, value in scalars(record):
                group = key.partition("/")[0] if "/" in key else "round"
                groups.add(group)
                if columns in ("", group):
                    row[key] = value
            rows.append(row)
        if columns and rows and columns not in groups:
            raise ConfigError("columns", f"no numbers of {columns!r} here; allowed: {', '.join(sorted(groups))}")
        return rows

    @property
    def scores(self) -> dict[str, Scores]:
        """Returns the scores by name of net, with `clients` for the clients' own; empty where none was tested."""
        from fedmpi.results.frame import points

        scores = {}
        for name in self.tested:
            losses = points(self.records, name, "loss")["y"].to_dict()
            shares = points(self.records, name)["y"].to_dict()
            num_tested = None if name == CLIENTS else self.num_test
            tests = [Score(number, share, losses.get(number), num_tested) for number, share in shares.items()]
            scores[name] = Scores(tests[-1], max(tests, key=lambda test: test.accuracy))
        return scores

    @checked
    def partition(self) -> Clients:
        """Returns which client has which training examples, of which classes. Reads the data set.

        Raises DataError where these data are not the run's, or where `partition.h5` is missing or damaged.
        """
        partition, dataset = self.divided_data()
        counts = class_counts(partition, dataset.classes("train"), self.config.data.info().num_strata)
        return Clients(partition.indices, partition.offsets, counts)

    @restore_process_state()
    @checked
    def net(self, tier: str | float | None = None, round: Round = "last", *, dense: bool = False) -> nn.Module:
        """Returns the net of a tier as a plain torch module on the CPU, in eval mode: (B, ...) -> logits (B, classes).

        Its BatchNorm statistics are those of the round's test, or, where that took each batch's own, estimated over the
        training data. `tier` None is the only tier. Factorized layers stay as two unless the net is to be `dense`.
        Raises UserError with the nets or rounds that there are.
        """
        return self._net(tier, None, round, dense=dense).net

    @restore_process_state()
    @checked
    def client_net(self, client: int, round: Round = "last", *, dense: bool = False, cut: bool = False) -> nn.Module:
        """Returns the net that this client is tested with, as `net` does; `cut` leaves out the rows and columns that a
        client of hermes has pruned. Raises UserError where clients have none.
        """
        trained = self._net(None, client, round, dense=dense)
        return (cut_net(trained) if cut else trained).net

    @restore_process_state()
    @checked
    def export(
        self,
        path: StrPath | None = None,
        *,
        tier: str | float | None = None,
        client: int | None = None,
        round: Round = "last",
        format: FormatName | None = None,
        dense: bool = False,
        check: bool = False,
    ) -> Path:
        """Writes one net to a file, as `fedmpi export` does, and returns its path; None is a name in the current
        folder. The format is by default that of the path's ending, else pt2.

        Raises UserError, also where `check` finds that the file has not the net's accuracy: the reported one, or where
        the test took statistics of each batch, that with statistics of the training data.
        """
        written_as = format_of(path, format)
        trained = self._net(tier, client, round, dense=dense)
        written = write(trained, written_as, path)
        if check and not (result := measure.check(written, trained, written_as)).holds:
            raise UserError(str(written), result.verdict())
        return written

    @checked
    def figure(
        self,
        *others: InstanceOf[reader.Run],
        x: Literal["rounds", "bytes", "macs"] = "rounds",
        y: Literal["accuracy", "loss"] = "accuracy",
        tiers: Sequence[str | float] = (),
    ) -> Figure:
        """Draws `fedmpi show --figure`: this run and `others`, a line for each setting, a panel for each of `tiers`
        (without: for the largest net that has a `y`). Runs that are left out, or not drawn to their last round, are
        named on stderr. Raises ConfigError where nothing of it is recorded.
        """
        return figure_of([self, *others], tiers=[*map(tier_name, tiers)], x=x, y=y)

    def __repr__(self) -> str:
        names = f"{self.values['method']['name']} on {self.values['data']['name']}"
        origin = f", from {self.init_from}" if self.init_from else ""
        headline = f"{names}, {self.continues_after} of {self.num_rounds} rounds, {self.state}{origin}: {self.path}"
        rows = []
        for name, scores in self.scores.items():
            rows.append([name, percent(scores.last.accuracy), percent(scores.best.accuracy), str(scores.best.round)])
        return "\n".join([headline, *markdown_lines(("net", "last", "best", "at round"), rows, 1)])

    def _net(self, tier: str | float | None, client: int | None, which: Round, *, dense: bool) -> TrainedNet:
        number = chosen_round(self.dir, str(which), {record["round"]: record for record in self.records})
        if number not in self._opened:
            self._opened.clear()
            self._opened[number] = saved_round(self.path, str(number), self.overrides)
        return net_of(self._opened[number], None if tier is None else tier_name(tier), client, dense=dense)

    @cached_property
    def _opened(self) -> dict[int, SavedRound]:
        """Keeps the round that was opened last: opening one takes as long as the start of a run."""
        return {}

"""A run as a value: what its directory shows, and its trained nets; and what each call of `fedmpi` puts back."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, InstanceOf, validate_call
from torch import nn

from fedmpi.data import own
from fedmpi.data.partition import Partition, class_counts
from fedmpi.errors import ConfigError, UserError
from fedmpi.export.command import check_file, write
from fedmpi.export.formats import FormatName, format_of
from fedmpi.export.nets import TrainedNet, cut_net, net_of, tier_name
from fedmpi.export.saved import Round, saved_round
from fedmpi.learning.determinism import settings_kept
from fedmpi.report.records import scalars, score_of, scores_of
from fedmpi.results import run as reader
from fedmpi.results.show import figure_of
from fedmpi.running.stopping import ENDING, SIGNAL
from fedmpi.store.files import user_path
from fedmpi.store.run_dir import RunDir

StrPath = Annotated[str | os.PathLike[str], AfterValidator(user_path)]
"""A path; `~` is the home folder."""


@contextmanager
def as_a_command() -> Iterator[None]:
    """Looks anew at the user's data. Puts signal handlers, environment variables, filters of warnings and torch's
    settings (threads, determinism, precision, default dtype and device) back after the block.
    """
    own.forget()
    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (SIGNAL, *ENDING)}
    try:
        with warnings.catch_warnings(), settings_kept():
            yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        if threading.current_thread() is threading.main_thread():  # no other can have changed a handler
            for number, handler in handlers.items():
                if handler is not None:  # None was not set by Python
                    signal.signal(number, handler)


class Score(NamedTuple):
    """A test after one round: a share (r2 of a regression), of the clients' own nets the mean, and the mean loss."""

    round: int
    accuracy: float
    loss: float | None = None


class Scores(NamedTuple):
    """The tests of one net: after the last tested round, and the highest accuracy (of equals the first)."""

    last: Score
    best: Score


@dataclass(frozen=True, repr=False)
class Clients(Partition):
    """Whose the training examples are: `client(i)` has example numbers, int64, `sizes` how many each client has."""

    classes: NDArray[np.int64]
    """Number of examples by client and class, (clients, classes); one column where targets are no classes."""


class Run(reader.Run):
    """A run's directory, which is never written. Each value is read once; `open_run` reads anew. Raises RunDirError
    where this machine sees no run there.
    """

    @property
    def dir(self) -> RunDir:
        return RunDir.of_run(self.path)

    def rounds(self, columns: str = "") -> list[dict[str, int | float]]:
        """Returns a row for each round, with every number of its record, `tiers/0.5/accuracy` for nested ones.

        `columns` keeps one group of nested ones (`tiers`, `clients`, `method`, `seconds`, `busy_s`). Raises ConfigError
        where no round has it.
        """
        groups = {key for record in self.records for key, value in record.items() if isinstance(value, Mapping)}
        if columns and self.records and columns not in groups:
            raise ConfigError("columns", f"no numbers of {columns!r} here; allowed: {', '.join(sorted(groups))}")
        rows = []
        for record in self.records:
            chosen = {columns: record.get(columns)} if columns else record
            rows.append({"round": record["round"], **dict(scalars(chosen))})
        return rows

    @property
    def scores(self) -> dict[str, Scores]:
        """Returns the scores by name of net, with `clients` for the clients' own; empty where none was tested."""
        scores = {}
        for name in self.tested:
            found = {record["round"]: scores_of(record, name) for record in self.records}
            tests = [Score(number, score_of(each), each.get("loss")) for number, each in found.items() if each]
            scores[name] = Scores(tests[-1], max(tests, key=lambda test: test.accuracy))
        return scores

    @as_a_command()
    def partition(self) -> Clients:
        """Returns which client has which training examples, of which classes. Reads the data set.

        Raises DataError where these data are not the run's, or where `partition.h5` is missing or damaged.
        """
        partition, dataset = self.divided_data()
        counts = class_counts(partition, dataset.classes("train"), self.config.data.info().num_strata)
        return Clients(partition.indices, partition.offsets, counts)

    @as_a_command()
    @validate_call
    def net(
        self,
        tier: str | float | None = None,
        round: Round = "last",
        *,
        client: int | None = None,
        dense: bool = False,
        cut: bool = False,
    ) -> nn.Module:
        """Returns the net of a tier, or the one that a client is tested with, as a plain torch module on the CPU, in
        eval mode: (B, ...) -> logits (B, classes).

        Its BatchNorm statistics are those of the round's test, or, where that took each batch's own, estimated over the
        training data. `tier` None is the only tier. Factorized layers stay as two unless the net is to be `dense`;
        `cut` leaves out what a client of hermes has pruned. Raises UserError with the nets or rounds that there are.
        """
        trained = self._net(tier, client, round, dense=dense)
        return (cut_net(trained) if cut else trained).net

    @as_a_command()
    @validate_call
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

        Raises UserError, also where `check` finds that the file has not the net's accuracy.
        """
        written_as = format_of(path, format)
        trained = self._net(tier, client, round, dense=dense)
        written = write(trained, written_as, path)
        if check and not (result := check_file(written, trained, written_as)).holds:
            raise UserError(str(written), result.verdict())
        return written

    @as_a_command()
    @validate_call
    def figure(
        self,
        *others: InstanceOf[reader.Run],
        x: Literal["rounds", "bytes", "macs"] = "rounds",
        y: Literal["accuracy", "loss"] = "accuracy",
        tiers: Sequence[str | float] = (),
    ) -> Any:
        """Draws `fedmpi show --figure` as a Figure of matplotlib: this run and `others`, a line for each setting, a
        panel for each of `tiers` (without: for the largest net that has a `y`). Raises ConfigError where nothing of it
        is recorded.
        """
        return figure_of([self, *others], tiers=[*map(tier_name, tiers)], x=x, y=y)

    def __repr__(self) -> str:
        names = f"{self.values['method']['name']} on {self.values['data']['name']}"
        origin = f", from {self.init_from}" if self.init_from else ""
        return f"{names}, {self.continues_after} of {self.num_rounds} rounds, {self.state}{origin}: {self.path}"

    def _net(self, tier: str | float | None, client: int | None, which: Round, *, dense: bool) -> TrainedNet:
        saved = saved_round(self.path, str(which), self.overrides)
        return net_of(saved, None if tier is None else tier_name(tier), client, dense=dense)

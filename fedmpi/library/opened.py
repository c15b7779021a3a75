"""A run as a value: what its directory shows, and its trained nets."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import InstanceOf

from fedmpi.config.load import Override
from fedmpi.config.schema import Config
from fedmpi.data.dataset import load_data, place_of, short_digest
from fedmpi.data.partition import Partition, saved
from fedmpi.errors import ConfigError, DataError, UserError
from fedmpi.export import FormatName, Round, format_of, tier_name
from fedmpi.library.annotated import APath, TierName, TierNames, checks_arguments
from fedmpi.library.surroundings import given_back
from fedmpi.report.best import Best
from fedmpi.report.records import CLIENTS, Record, net_scores, scalars
from fedmpi.report.table_text import markdown_lines
from fedmpi.results import run as reader
from fedmpi.store.units import named_among, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from fedmpi.export.saved import SavedRound


@dataclass(frozen=True)
class Score:
    """A test after one round. `accuracy` is a share; of the clients' own nets it is the mean, and the rest is None."""

    round: int
    accuracy: float
    loss: float | None = None
    """Mean cross-entropy."""
    correct: int | None = None
    """How many of the `num_tested` test examples were right."""
    num_tested: int | None = None


@dataclass(frozen=True)
class Scores:
    """The tests of one net: after the last tested round, and the highest accuracy (of equals the first)."""

    last: Score
    best: Score


class ScoresByName(dict[str, Scores]):
    """The scores of each net, by its name or, for names that are numbers, by the number: `["0.25"]` is `[0.25]`.

    Any other key raises ConfigError with the names.
    """

    def __missing__(self, asked: object) -> Scores:
        name = named_among(f"{asked:g}" if isinstance(asked, Real) else str(asked), self)
        if name is None:
            allowed = ", ".join(map(repr, self)) or "none yet, because no round was tested"
            raise ConfigError("fedmpi.Run.scores", f"no net {asked!r} was tested; allowed: {allowed}")
        return self[name]


@dataclass(frozen=True)
class Clients(Partition):
    """Whose the training examples are: `client(i)` has example numbers, int64, `sizes` how many each client has."""

    classes: NDArray[np.int64]
    """How many examples of each class each client has, (clients, classes)."""

    def client(self, client: int) -> NDArray[np.int64]:
        """Numbers of the examples of one client, a read-only view. Raises ConfigError where there is no such client."""
        if not 0 <= client < self.num_clients:
            raise ConfigError("fedmpi.Run.partition: client", f"{client}; allowed: 0 to {self.num_clients - 1}")
        return super().client(client)


class Run:
    """A run's directory, read anew at each call and never written. Everything raises RunDirError where the directory
    holds no run, as seen from this machine, or where its config is damaged.
    """

    @checks_arguments
    def __init__(self, path: APath, overrides: Sequence[Override] = ()) -> None:
        """`overrides` are those of `open_run`."""
        self.path = Path(path).absolute()
        self._overrides = overrides
        self._opened: SavedRound | None = None

    def _read(self) -> reader.Run:
        """Reads the folder anew. Raises RunDirError where it holds no run."""
        found = reader.Run(self.path)
        _ = found.values
        return found

    @cached_property
    def config(self) -> Config:
        """The config that it was made with. Raises ConfigError where it names code that the run's folder alone does not
        make fedmpi import.
        """
        return self._read().config(self._overrides)

    @property
    def state(self) -> str:
        """What `fedmpi show` says: `finished`, `running`, `stopped` (saved, to be continued), `interrupted`, ..."""
        return self._read().state

    @property
    def is_finished(self) -> bool:
        """Whether all rounds are done, and the report is written."""
        return self.state == "finished"

    @property
    def records(self) -> list[dict[str, Any]]:
        """What `rounds.jsonl` says, a dict for each round; `fedmpi/store/README.md` has its keys."""
        return self._read().records

    @property
    def init_from(self) -> str:
        """Names the run and round whose state this one begins with, as `RUN@3`; '' if it has a state of its own."""
        return self._read().init_from

    def rounds(self) -> list[dict[str, float]]:
        """A row for each round, with every number of its record, `tiers/0.5/accuracy` for
        nested ones. Rows differ in their keys where a round was not tested. `pandas.DataFrame(run.rounds())` takes them
        as they are.
        """
        return [{"round": record["round"], **dict(scalars(record))} for record in self._read().records]

    @property
    def scores(self) -> ScoresByName:
        """The scores by name of net, with `clients` for the clients' own, in the run's own rounds; empty where none of
        them was tested.
        """
        is_test = self.config.evaluation.on == "test"  # how many examples clients validate on is not known here
        return self._scores(self.config.data.used().num_test if is_test else None)

    def _scores(self, num_test: int | None) -> ScoresByName:
        """`num_test` is the size of the test set, None where it does not matter."""
        records = self._read().records
        tests = [(name, score) for record in records for name, score in _of_record(record, num_test)]
        last, best_round = dict(tests), Best.of(records).best_round
        best = {name: score for name, score in tests if score.round == best_round[name]}
        return ScoresByName({name: Scores(last[name], best[name]) for name in last})

    def partition(self) -> Clients:
        """Which client has which training examples, of which classes. Reads the data set. Raises DataError where these
        data are not the run's, or where `partition.h5` is missing or damaged.
        """
        path = self._read().dir.partition_path
        partition, digest = saved(path)
        dataset, num_classes = load_data(self.config.data), self.config.data.info().num_classes
        if digest not in ("", dataset.digest):
            was, here = short_digest(digest), short_digest(dataset.digest)
            here = f"{place_of(self.config.data)} has (digest {here})"
            raise DataError(str(path), f"divides other data (digest {was}) than {here}; name the run's data")
        from fedmpi.data.show import class_counts

        counts = class_counts(partition, dataset.train_y, num_classes)
        return Clients(partition.indices, partition.offsets, counts)

    @given_back()
    @checks_arguments
    def net(self, tier: TierName | None = None, round: Round = "last", *, dense: bool = False) -> nn.Module:
        """Returns the net of a tier as a plain torch module on the CPU, in eval mode: (B, ...) -> logits (B, classes).
        Its BatchNorm statistics are those of the round's test, or, where that took each batch's own, estimated over the
        training data. `tier` None is the only tier. Factorized layers stay as two unless the net is to be `dense`.
        Raises UserError with the nets or rounds that there are.
        """
        from fedmpi.export.command import net_of

        return net_of(self._saved(round), tier, None, dense=dense).net

    @given_back()
    @checks_arguments
    def client_net(self, client: int, round: Round = "last", *, dense: bool = False, cut: bool = False) -> nn.Module:
        """The net that this client is tested with, as `net` gives it; `cut` leaves out the rows and columns that a
        client of hermes has pruned. Raises UserError where clients have none.
        """
        from fedmpi.export.command import net_of
        from fedmpi.export.nets import cut_net

        trained = net_of(self._saved(round), None, client, dense=dense)
        return (cut_net(trained) if cut else trained).net

    @given_back()
    @checks_arguments
    def export(
        self,
        path: APath | None = None,
        *,
        tier: TierName | None = None,
        client: int | None = None,
        round: Round = "last",
        format: FormatName | None = None,
        dense: bool = False,
        check: bool = False,
    ) -> Path:
        """Writes one net to a file, as `fedmpi export` does, and gives its path; None is a name in the current folder.
        The format is by default that of the path's ending, else pt2.

        Raises UserError, also where `check` finds that the file has not the net's accuracy: the reported one, or where
        the test took statistics of each batch, that with statistics of the training data.
        """
        from fedmpi.export.command import net_of, write
        from fedmpi.export.formats import FORMATS
        from fedmpi.export.measure import check as checked

        written_as = FORMATS[format_of(path, format)]
        trained = net_of(self._saved(round), tier, client, dense=dense)
        written = write(trained, written_as, path)
        if check and not (found := checked(written, trained, written_as)).holds:
            raise UserError(str(written), found.verdict())
        return written

    @checks_arguments
    def figure(
        self,
        *others: InstanceOf[Run],
        x: Literal["rounds", "bytes", "macs"] = "rounds",
        y: Literal["accuracy", "loss"] = "accuracy",
        tiers: TierNames = (),
    ) -> Figure:
        """Draws `fedmpi show --figure`: this run and `others`, a line for each setting, a panel for each of `tiers`
        (without: for the largest net that has a `y`). Runs that are left out, or not drawn to their last round, are
        named on stderr. Raises ConfigError where nothing of it is recorded.
        """
        from fedmpi.results.show import figure_of

        return figure_of([run._read() for run in (self, *others)], tiers=[*map(tier_name, tiers)], x=x, y=y)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def __str__(self) -> str:
        return "\n".join([self._headline(), *markdown_lines(_HEADS, self._rows(), 1)])

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = [_HEADS, *self._rows()]
        cells = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<p>{html.escape(self._headline())}</p><table>{cells}</table>"

    def _headline(self) -> str:
        run = self._read()
        names = " on ".join(str(run.values[section]["name"]) for section in ("method", "data"))
        branch = f", from {run.init_from}" if run.init_from else ""
        return f"{names}, {run.continues_after} of {run.rounds} rounds, {run.state}{branch}: {self.path}"

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (name, percent(found.last.accuracy), percent(found.best.accuracy), str(found.best.round))
            for name, found in self._scores(None).items()
        ]

    def _saved(self, which: Round) -> SavedRound:
        """The round that was opened last stays open: to open one takes as long as the start of a run."""
        from fedmpi.export.saved import chosen_round, saved_round

        run = self._read()
        number = chosen_round(run.dir, str(which), {record["round"]: record for record in run.records})
        if self._opened is None or self._opened.number != number:
            self._opened = saved_round(self.path, str(number), self._overrides)
        return self._opened


_HEADS = ("net", "last", "best", "at round")


def _of_record(record: Record, num_test: int | None) -> Iterator[tuple[str, Score]]:
    """The tests of one round, by name of net."""
    for name, scores in net_scores(record).items():
        correct = None if num_test is None else round(scores["accuracy"] * num_test)
        yield name, Score(record["round"], scores["accuracy"], scores["loss"], correct, num_test)
    if own := record.get(CLIENTS):
        yield CLIENTS, Score(record["round"], own["accuracy"])

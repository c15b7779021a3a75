"""What the engine costs by ranks, where clients train nothing.

    python jobs/bench.py scaling [section.key=value ...] [--ranks 2,3,5,9] [--upload-mb 1,10,45] [--pairs 5]

For each number of ranks and each size of an upload one job runs, `--pairs` times in turn, a round of 20 clients
(clients.per_round) that send back what they were given by each exchange, and a bare loop of mpi4py, whose rank 0
broadcasts as many bytes and then receives as many messages into one buffer, without looking at them. The first of each
is not counted; rounds are neither tested nor saved. The table has the median seconds of a round, lowest and highest,
the milliseconds a client, how long rank 0 and the busiest worker worked themselves, the messages (`wire_messages` of
`fedmpi/store/README.md`) and bytes moved, the bare loop's median, and the median ratio of a round to the bare loop of
the same turn, lowest and highest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmpi.command.manners import Parser, run_command
from fedmpi.config.load import load
from fedmpi.errors import ConfigError
from fedmpi.methods.fedavg import FedAvg
from fedmpi.report.table_text import print_lines
from fedmpi.rounds.recovering import OpenRound
from fedmpi.rounds.state import Setup
from fedmpi.running.resuming import initial_state
from fedmpi.studies.arguments import number, numbers
from fedmpi.studies.bench.cases import overrides_of
from fedmpi.studies.bench.on_ranks import launched, of_all, prepared
from fedmpi.train_round import train_round

if TYPE_CHECKING:
    from fedmpi.learning.local import LocalTrainer, TrainOutcome
    from fedmpi.methods.values import Client, LocalWork

NUM_CLIENTS = 20
_EXCHANGES = ("gather", "reduce", "auto")
_BARE = "bare"
_SETS = ("model.hidden=", "mpi.exchange=", "rounds=")
_LONG = 1_000_000
_METHOD = "fedmpi.studies.bench.scaling:Idle"
_WORDS = f"""rounds={_LONG} method.name={_METHOD} data.name=synthetic data.shape=[1,25,40] data.classes=10
    data.num_train=40 data.num_test=10 partition.name=iid clients.count={NUM_CLIENTS} clients.per_round={NUM_CLIENTS}
    model.name=mlp train.batch_size=2 evaluation.every={_LONG}"""


class Idle(FedAvg):
    """Clients that train nothing: they send back the net that they were given."""

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """No step."""
        from fedmpi.learning.local import TrainOutcome

        return TrainOutcome(0.0, 0, True)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a user's mistake."""
    return run_command(lambda: _bench(_arguments(argv)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("jobs/bench.py scaling", __doc__)
    parser.add_argument("what", choices=["scaling"])
    parser.add_argument("words", nargs="*", metavar="section.key=value", help="on top of the run's own settings")
    parser.add_argument("--ranks", type=numbers, default=[2, 3, 5, 9], help="default 2,3,5,9")
    parser.add_argument("--upload-mb", type=numbers, default=[1, 10, 45], help="megabytes, default 1,10,45")
    parser.add_argument("--pairs", type=number(int, 1), default=5, help="rounds of each (default 5)")
    arguments = parser.parse_intermixed_args(argv)
    arguments.overrides = overrides_of(arguments.words, _SETS)
    for option, found, least in (("--ranks", arguments.ranks, 2), ("--upload-mb", arguments.upload_mb, 1)):
        if min(found) < least:
            raise ConfigError("command line", f"argument {option}: expected whole numbers >= {least}, got {min(found)}")
    config = load(None, [*_WORDS.split(), *arguments.overrides])  # here a mistake is one line
    if config.method.name != _METHOD:
        raise ConfigError(
            "method.name", f"this benchmark's clients train nothing, got {config.method.name!r}; leave the word out"
        )
    arguments.num_clients = config.clients.per_round
    return arguments


def _bench(arguments: argparse.Namespace) -> None:
    times, moved = ["a round", "lowest - highest", "a client", "rank 0", "a worker"], ["messages", "moved"]
    head, lines = ["upload", "ranks", "exchange", *times, *moved, "bare", "ratio", "lowest - highest"], []
    for megabytes in arguments.upload_mb:
        hidden = round(megabytes * 1e6 / 4 / (1000 + 1 + 10))
        words = [*_WORDS.split(), *arguments.overrides, f"model.hidden=[{hidden}]"]
        for ranks in arguments.ranks:
            found = launched("scaling", words, ranks, megabytes=megabytes, pairs=arguments.pairs)
            for how in _EXCHANGES:
                lines.append([f"{megabytes} MB", str(ranks), *cells(how, found, arguments.num_clients)])
    print_lines(head, lines, 3, sys.stdout)


def cells(how: str, found: dict[str, Any], num_clients: int) -> list[str]:
    """The line of one exchange, from what `on_ranks` has found."""
    own, bare_s = found[how], found[_BARE]["wall_s"]
    walls, busy_s = own["wall_s"], np.array(own["busy_s"])  # (turns,), (turns, ranks)
    median, ratios = statistics.median(walls), [one / other for one, other in zip(walls, bare_s, strict=True)]
    return [
        f"{how}: {own['exchange']}" if how == "auto" else how,
        f"{median:.3f} s",
        f"{min(walls):.3f} - {max(walls):.3f} s",
        f"{1e3 * median / num_clients:.1f} ms",
        f"{np.median(busy_s[:, 0]):.3f} s",
        f"{np.median(busy_s[:, 1:].max(axis=1)):.3f} s",
        str(own["wire_messages"]),
        f"{1e-6 * own['wire_bytes']:.0f} MB",
        f"{statistics.median(bare_s):.3f} s",
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f} - {max(ratios):.2f}",
    ]


def on_ranks(comm: Any, folder: Path, words: Sequence[str], megabytes: int, pairs: int) -> dict[str, Any]:
    """Of each exchange and of the bare loop the seconds of each turn but the first; of exchanges also each rank's own
    work, (turns, ranks), and what the last round moved. Rank 0's are of all ranks.
    """
    setup = prepared(comm, folder, words)
    num_clients, opened = setup.config.clients.per_round, OpenRound(1, initial_state(setup, None))
    buffer = np.zeros(megabytes * 1_000_000, "u1")
    found: dict[str, Any] = {how: {"wall_s": [], "busy_s": []} for how in (*_EXCHANGES, _BARE)}
    for _ in range(pairs + 1):
        for how in _EXCHANGES:
            opened = _one_round(_by(setup, how), opened, found[how])
        found[_BARE]["wall_s"].append(_bare_round(buffer, num_clients))
    return {how: {key: _counted(value) for key, value in of.items()} for how, of in found.items()}


def _counted(value: Any) -> Any:
    """Without the first turn, which warms up."""
    return value[1:] if isinstance(value, list) else value


def _by(setup: Setup, how: str) -> Setup:
    """The same setup with another exchange, which changes no bit of a round."""
    mpi = setup.config.mpi.model_copy(update={"exchange": how})
    return replace(setup, config=setup.config.model_copy(update={"mpi": mpi}))


def _one_round(setup: Setup, opened: OpenRound, found: dict[str, Any]) -> OpenRound:
    """Makes the round, adds its times to `found`, and opens the next one."""
    _all_begin()
    setup.clock.take()
    setup.comm.traffic.take_moved()
    result = train_round(setup, opened)
    taken = setup.clock.take()
    rows = of_all(setup.comm, [taken["wall"], taken["wall"] - taken["idle"]])  # is among a run's messages, too
    found |= {"exchange": result.exchange, **setup.comm.traffic.take_moved()}
    found["wall_s"].append(float(rows[:, 0].mean()))
    found["busy_s"].append(rows[:, 1].tolist())
    return OpenRound(opened.number + 1, opened.state, opened.published)


def _all_begin() -> None:
    """Unlike `wait_for_all`, whose ranks sleep and wake up to 5 ms apart."""
    from fedmpi.mpi.library import MPI

    MPI.COMM_WORLD.Barrier()


def _bare_round(buffer: np.ndarray, num_clients: int) -> float:
    """Seconds of the same messages as plain mpi4py."""
    from fedmpi.mpi.library import MPI

    comm = MPI.COMM_WORLD
    comm.Barrier()
    started = time.perf_counter()
    comm.Bcast(buffer)
    for client in range(num_clients):
        worker = 1 + client % (comm.size - 1)
        if comm.rank == 0:
            comm.Recv(buffer, worker)
        elif comm.rank == worker:
            comm.Send(buffer, 0)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())

"""Measures what the engine costs by ranks, where clients train nothing.

    python jobs/bench/scaling.py [section.key=value ...] [--ranks 2,3,5,9] [--upload-mb 1,10,45] [--pairs 5]

For each number of ranks and each size of an upload one job runs, in turn, a round of 20 clients (clients.per_round)
that send back what they were given by each exchange, and a bare loop of mpi4py, whose rank 0 broadcasts as many bytes
and then receives as many messages into one buffer, without looking at them. The table has how long rank 0 and the
busiest worker worked themselves, too, and the messages and bytes moved (`wire_messages` of `fedmpi/store/README.md`).
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import measuring
import numpy as np
from measuring import LONG, SPREAD, numbers, ratios, spread

from fedmpi.learning.local import LocalTrainer, TrainOutcome
from fedmpi.methods.fedavg import FedAvg
from fedmpi.methods.values import Client, LocalWork
from fedmpi.report.table_text import print_lines
from fedmpi.running.resuming import initial_state
from fedmpi.train_round import train_round

EXCHANGES = ("gather", "reduce", "auto")
SETTINGS = f"""{LONG} method.name=scaling:Idle data.name=synthetic data.shape=[1,25,40] data.classes=10
    data.num_train=40 data.num_test=10 partition.name=iid clients.count=20 clients.per_round=20
    model.name=mlp train.batch_size=2"""


class Idle(FedAvg):
    """Clients that train nothing: they send back the net that they were given."""

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Takes no step."""
        return TrainOutcome(0.0, 0, True)


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--ranks", type=numbers, default=[2, 3, 5, 9], help="default 2,3,5,9")
    parser.add_argument("--upload-mb", type=numbers, default=[1, 10, 45], help="megabytes, default 1,10,45")
    arguments = parser.parse_intermixed_args()
    if min(arguments.ranks) < 2:
        parser.error("argument --ranks: expected whole numbers >= 2")
    words = measuring.settings(arguments, SETTINGS)
    lines = []
    for megabytes in arguments.upload_mb:
        hidden = round(megabytes * 1e6 / 4 / (1000 + 1 + 10))
        for ranks in arguments.ranks:
            more = {"megabytes": megabytes, "pairs": arguments.pairs}
            found = measuring.launched(measure, [*words, f"model.hidden=[{hidden}]"], ranks, **more)
            lines += [[f"{megabytes} MB", str(ranks), *cells(how, found)] for how in EXCHANGES]
    times, moved = ["a round", SPREAD, "a client", "rank 0", "a worker"], ["messages", "moved"]
    print_lines(["upload", "ranks", "exchange", *times, *moved, "bare", "ratio", SPREAD], lines, 3)


def cells(how: str, found: dict[str, Any]) -> list[str]:
    """Returns the line of one exchange."""
    walls, bare_s, moved = found["seconds"][how], found["seconds"]["bare"], found["moved"][how]
    busy_s = np.array(found["busy_s"][how])  # (turns, ranks)
    return [
        f"{how}: {moved['exchange']}" if how == "auto" else how,
        *spread(walls, ".3f", " s"),
        f"{1e3 * statistics.median(walls) / found['clients']:.1f} ms",
        f"{np.median(busy_s[:, 0]):.3f} s",
        f"{np.median(busy_s[:, 1:].max(axis=1)):.3f} s",
        str(moved["wire_messages"]),
        f"{1e-6 * moved['wire_bytes']:.0f} MB",
        f"{statistics.median(bare_s):.3f} s",
        *spread(ratios(walls, bare_s)),
    ]


def measure(comm: Any, folder: Path, words: Sequence[str], megabytes: int, pairs: int) -> dict[str, Any]:
    """Returns the seconds of each turn by name; of each exchange every rank's own work, (turns, ranks), and what the
    last round moved.
    """
    from fedmpi.mpi.library import MPI

    setup = measuring.prepared(comm, folder, words)
    numbers = itertools.count(1)
    state, published = initial_state(setup, None), None
    busy_s: dict[str, list[list[float]]] = {how: [] for how in EXCHANGES}
    moved: dict[str, dict[str, Any]] = {}

    def federated(how: str) -> float:
        nonlocal state, published
        mpi = setup.config.mpi.model_copy(update={"exchange": how})  # changes no bit of a round
        own = replace(setup, config=setup.config.model_copy(update={"mpi": mpi}))
        MPI.COMM_WORLD.Barrier()  # ranks of `comm.wait_for_all` sleep, and wake up to 5 ms apart
        setup.clock.take()
        comm.traffic.take_moved()
        state, published, result = train_round(own, next(numbers), state, published)
        taken = setup.clock.take()
        rows = measuring.of_all(comm, [taken["wall"], taken["wall"] - taken["idle"]])  # counts as a message, too
        moved[how] = {"exchange": result.exchange, **comm.traffic.take_moved()}
        busy_s[how].append(rows[:, 1].tolist())
        return float(rows[:, 0].mean())

    clients, buffer = setup.config.clients.per_round, np.zeros(megabytes * 1_000_000, "u1")
    measures: dict[str, Callable[[], float]] = {how: partial(federated, how) for how in EXCHANGES}
    found = measuring.in_turn({**measures, "bare": partial(bare_round, MPI.COMM_WORLD, buffer, clients)}, pairs)
    counted = {how: turns[1:] for how, turns in busy_s.items()}
    return {"seconds": found, "busy_s": counted, "moved": moved, "clients": clients}


def bare_round(comm: Any, buffer: np.ndarray, num_clients: int) -> float:
    """Returns the seconds of the same messages as plain mpi4py."""
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
    measuring.start(main)

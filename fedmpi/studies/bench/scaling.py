"""What the engine costs by ranks, where clients train nothing.

    python jobs/bench.py scaling [section.key=value ...] [--ranks 2,3,5,9] [--upload-mb 1,10,45] [--pairs 5]

For each number of ranks and each size of an upload it runs `--pairs` rounds of 20 clients that send back what they were
given, by each exchange; and a bare program of mpi4py on as many ranks, whose rank 0 broadcasts as many bytes and then
receives 20 such messages into one buffer, without looking at them. Rounds are those between the first and the last,
which is tested and saved. The table has the median seconds of a round, lowest and highest, the milliseconds a client,
how long rank 0 and the busiest worker worked themselves, the messages (`wire_messages` of `fedmpi/store/README.md`) and
bytes moved, and the ratio to the bare program.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmpi.command.manners import Parser, run_command
from fedmpi.config.load import load, only_overrides
from fedmpi.errors import ConfigError
from fedmpi.methods.fedavg import FedAvg
from fedmpi.report.table_text import print_lines
from fedmpi.studies.arguments import number, numbers
from fedmpi.studies.launch import environment, launcher, refuse_failure

if TYPE_CHECKING:
    from fedmpi.learning.local import LocalTrainer, TrainOutcome
    from fedmpi.methods.values import Client, LocalWork

NUM_CLIENTS = 20
_EXCHANGES = ("gather", "reduce", "auto")
_LONG = 1_000_000
_WORDS = f"""method.name=fedmpi.studies.bench.scaling:Idle data.name=synthetic data.shape=[1,25,40] data.classes=10
    data.num_train=40 data.num_test=10 partition.name=iid clients.count={NUM_CLIENTS} clients.per_round={NUM_CLIENTS}
    model.name=mlp train.batch_size=2 evaluation.every={_LONG} output.checkpoint_every={_LONG} output.tensorboard=false
    output.report=false output.progress=plain"""
_BARE = """import sys, time, numpy
from mpi4py import MPI
comm, num_bytes, num_clients, rounds = MPI.COMM_WORLD, *map(int, sys.argv[1:])
buffer, seconds = numpy.zeros(num_bytes, "u1"), []
for _ in range(rounds):
    comm.Barrier()
    started = time.perf_counter()
    comm.Bcast(buffer)
    for client in range(num_clients):
        worker = 1 + client % (comm.size - 1)
        if comm.rank == 0:
            comm.Recv(buffer, worker)
        elif comm.rank == worker:
            comm.Send(buffer, 0)
    seconds.append(time.perf_counter() - started)
print(seconds) if comm.rank == 0 else None"""


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
    arguments.overrides = only_overrides(arguments.words)
    for option, found, least in (("--ranks", arguments.ranks, 2), ("--upload-mb", arguments.upload_mb, 1)):
        if min(found) < least:
            raise ConfigError("command line", f"argument {option}: expected whole numbers >= {least}, got {min(found)}")
    load(None, [*_WORDS.split(), *arguments.overrides])  # here a mistake is one line
    return arguments


def _bench(arguments: argparse.Namespace) -> None:
    head = [
        "upload",
        "ranks",
        "exchange",
        "a round",
        "lowest - highest",
        "a client",
        "rank 0",
        "a worker",
        "messages",
        "moved",
    ]
    lines = []
    for megabytes in arguments.upload_mb:
        for ranks in arguments.ranks:
            bare_s = statistics.median(_bare(ranks, megabytes, arguments.pairs))
            lines += [_line(ranks, megabytes, how, arguments, bare_s) for how in _EXCHANGES]
    print_lines([*head, "bare", "ratio"], lines, 3, sys.stdout)


def _line(ranks: int, megabytes: int, how: str, arguments: argparse.Namespace, bare_s: float) -> list[str]:
    records = _records(ranks, megabytes, how, arguments.overrides, arguments.pairs)
    walls = [record["seconds"]["wall"] for record in records]
    median, spread = statistics.median(walls), f"{min(walls):.3f} - {max(walls):.3f} s"
    busy = [{int(rank): value for rank, value in record["busy_s"].items()} for record in records]
    root, worker = (statistics.median(find(one) for one in busy) for find in (lambda one: one[0], _busiest))
    taken = f"{how}: {records[0]['exchange']}" if how == "auto" else how
    moved = [str(records[0]["wire_messages"]), f"{1e-6 * records[0]['wire_bytes']:.0f} MB"]
    cells = [f"{median:.3f} s", spread, f"{1e3 * median / NUM_CLIENTS:.1f} ms", f"{root:.3f} s", f"{worker:.3f} s"]
    return [f"{megabytes} MB", str(ranks), taken, *cells, *moved, f"{bare_s:.3f} s", f"{median / bare_s:.2f}"]


def _busiest(busy_s: dict[int, float]) -> float:
    return max(value for rank, value in busy_s.items() if rank)


def _records(ranks: int, megabytes: int, how: str, overrides: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Those of the rounds between the first and the last."""
    hidden = round(megabytes * 1e6 / 4 / (1000 + 1 + 10))
    with tempfile.TemporaryDirectory() as folder:
        words = [*_WORDS.split(), *overrides, f"model.hidden=[{hidden}]", f"mpi.exchange={how}", f"rounds={rounds + 2}"]
        _run(ranks, ["-m", "fedmpi.main", *words, "--run-dir", f"{folder}/run"])
        lines = Path(folder, "run", "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines][1:-1]


def _bare(ranks: int, megabytes: int, rounds: int) -> list[float]:
    said = _run(ranks, ["-c", _BARE, str(megabytes * 1_000_000), str(NUM_CLIENTS), str(rounds + 1)])
    found: list[float] = json.loads(said.splitlines()[-1])
    return found[1:]


def _run(ranks: int, words: Sequence[str]) -> str:
    """What a Python on so many ranks prints. Raises as `refuse_failure` does."""
    command = [*launcher(ranks), sys.executable, *words]
    done = subprocess.run(command, env=environment(ranks), stdout=subprocess.PIPE, text=True)
    refuse_failure(done.returncode, command)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

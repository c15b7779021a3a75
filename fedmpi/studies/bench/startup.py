"""How long commands take before they do anything.

    python jobs/bench.py startup [section.key=value ...] [--ranks 1,3,5] [--pairs 5]

For each number of ranks it starts, in turn and `--pairs` times, the same number of processes that only import torch and
mpi4py, or only pydantic, and the commands of fedmpi beside which these stand: `--version`, `--list`, a mistake in a
config, `--plan`, and a run of `configs/fedhm_digits.yaml`, timed up to its first round and up to the end of that round.
Processes that import mpi4py are timed until the last of them has started MPI, all others until they have ended. The
table has medians, lowest and highest, and the ratio of the medians. The first start of each is not counted, because it
fills caches.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from fedmpi.command.manners import Parser, run_command
from fedmpi.config.address import CONFIGS
from fedmpi.config.load import load
from fedmpi.errors import FAILED, ConfigError
from fedmpi.mpi.mpirun import environment, start_words
from fedmpi.report.observer import Started
from fedmpi.report.table_text import print_lines
from fedmpi.studies.arguments import number, numbers
from fedmpi.studies.bench.cases import overrides_of
from fedmpi.studies.launch import refuse_failure

_CONFIG = str(CONFIGS / "fedhm_digits.yaml")
_SETS = ("rounds=", "output.dir=", "output.observers=")
_MOMENT = "fedmpi bench: "
_TORCH = f"""import time, torch
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
print("{_MOMENT}ready", time.time(), flush=True) if MPI.COMM_WORLD.rank == 0 else None"""
_PYDANTIC = "import pydantic"
_FEDMPI = ("-m", "fedmpi.main")
_COMMANDS = {
    "torch and mpi4py": (("-c", _TORCH), "ready", 0),
    "pydantic": (("-c", _PYDANTIC), "", 0),
    "--version": ((*_FEDMPI, "--version"), "", 0),
    "--list": ((*_FEDMPI, "--list"), "", 0),
    "a mistake": ((*_FEDMPI, _CONFIG, "train.lr=fast"), "", 2),
    "--plan": ((*_FEDMPI, _CONFIG, "--plan"), "", 0),
}
"""What Python is called with, the moment that counts (the end of the process if empty), and the exit code."""
_BESIDE = {
    "--version": "pydantic",
    "--list": "pydantic",
    "a mistake": "pydantic",
    "--plan": "torch and mpi4py",
    "to the first round": "torch and mpi4py",
    "to the end of round 1": "torch and mpi4py",
}


class Moments:
    """An observer of the timed run: says when rank 0 begins the first round, and when that has ended."""

    def run_started(self, started: Started) -> None:
        print(f"{_MOMENT}to the first round {time.time()}", flush=True)

    def round_done(self, record: object) -> None:
        print(f"{_MOMENT}to the end of round 1 {time.time()}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a user's mistake."""
    return run_command(lambda: _bench(_arguments(argv)))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("jobs/bench.py startup", __doc__)
    parser.add_argument("what", choices=["startup"])
    parser.add_argument("words", nargs="*", metavar="section.key=value", help="on top of fedhm_digits, for the run")
    parser.add_argument("--ranks", type=numbers, default=[1, 3, 5], help="default 1,3,5; 1 is without mpirun")
    parser.add_argument("--pairs", type=number(int, 1), default=5, help="starts of each (default 5)")
    arguments = parser.parse_intermixed_args(argv)
    arguments.overrides = overrides_of(arguments.words, _SETS)
    if 0 in arguments.ranks:
        raise ConfigError("command line", "argument --ranks: expected whole numbers >= 1, got 0")
    load(_CONFIG, arguments.overrides)  # here a mistake is one line
    return arguments


def _bench(arguments: argparse.Namespace) -> None:
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in arguments.ranks:
            starts = [_started_once(ranks, arguments.overrides, folder) for _ in range(arguments.pairs + 1)][1:]
            lines += _lines(ranks, starts)
    print_lines(["command", "ranks", "median", "lowest - highest", "beside", "median", "ratio"], lines, 1, sys.stdout)


def _started_once(ranks: int, overrides: Sequence[str], folder: str) -> dict[str, float]:
    """Seconds of every command, each started once, one after the other."""
    found = {
        name: _seconds(ranks, words, code).get(moment or "ended", 0.0)
        for name, (words, moment, code) in _COMMANDS.items()
    }
    short = ("rounds=1", f"output.dir={folder}", "output.observers=[fedmpi.studies.bench.startup:Moments]")
    return found | _seconds(ranks, (*_FEDMPI, _CONFIG, *overrides, *short), 0)


def _seconds(ranks: int, words: Sequence[str], code: int) -> dict[str, float]:
    """From the command to each moment that it says, and to its end. Raises as `refuse_failure` does for
    another code."""
    command, started = [*start_words(ranks), sys.executable, *words], time.time()
    # With the code of fedmpi compiled, as torch's is.
    variables = {**environment(ranks), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    found = {"ended": time.time() - started}
    if done.returncode != code:
        sys.stderr.write(done.stderr)
        refuse_failure(done.returncode or FAILED, command)
    for line in done.stdout.splitlines():
        if line.startswith(_MOMENT):
            name, _, moment = line.removeprefix(_MOMENT).rpartition(" ")
            found[name] = float(moment) - started
    return found


def _lines(ranks: int, starts: Sequence[dict[str, float]]) -> list[list[str]]:
    lines = []
    for name, yardstick in _BESIDE.items():
        taken = [start[name] for start in starts]
        median, beside = statistics.median(taken), statistics.median(start[yardstick] for start in starts)
        spread = f"{min(taken):.2f} - {max(taken):.2f} s"
        cells = [f"{median:.2f} s", spread, yardstick, f"{beside:.2f} s", f"{median / beside:.2f}"]
        lines.append([name, str(ranks), *cells])
    return lines


if __name__ == "__main__":
    sys.exit(main())

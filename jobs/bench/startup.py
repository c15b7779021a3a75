"""Measures how long commands take before they do anything.

    python jobs/bench/startup.py [section.key=value ...] [--ranks 1,3,5] [--pairs 5]

For each number of ranks it starts, in turn, the same number of processes that only import torch and mpi4py, or only
pydantic, and the commands of fedmpi beside which these stand; a run of `configs/fedhm_digits.yaml` is timed up to its
first round and up to the end of that round. Processes that import mpi4py are timed until the last of them has started
MPI, all others until they have ended.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import measuring
from measuring import SPREAD, spread

from fedmpi.config.address import CONFIGS
from fedmpi.mpi.mpirun import environment, start_words
from fedmpi.report.observer import Started
from fedmpi.report.table_text import print_lines

CONFIG = str(CONFIGS / "fedhm_digits.yaml")
MOMENT = "fedmpi bench: "
TORCH = f"""import time, torch
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
print("{MOMENT}ready", time.time(), flush=True) if MPI.COMM_WORLD.rank == 0 else None"""
FEDMPI = ("-m", "fedmpi")
COMMANDS = {
    "torch and mpi4py": (("-c", TORCH), "ready", 0),
    "pydantic": (("-c", "import pydantic"), "ended", 0),
    "--version": (("-m", "fedmpi.main", "--version"), "ended", 0),
    "list": ((*FEDMPI, "list"), "ended", 0),
    "a mistake": ((*FEDMPI, "run", CONFIG, "train.lr=fast"), "ended", 2),
    "plan": ((*FEDMPI, "plan", CONFIG), "ended", 0),
}
"""Python's arguments, the moment that counts, and the exit code of each."""
FIRST, LAST = "to the first round", "to the end of round 1"
BESIDE = {
    **dict.fromkeys(["--version", "list", "a mistake"], "pydantic"),
    **dict.fromkeys(["plan", FIRST, LAST], "torch and mpi4py"),
}


class Moments:
    """Observes the timed run: prints when rank 0 begins the first round, and when that has ended."""

    def run_started(self, started: Started) -> None:
        print(f"{MOMENT}{FIRST} {time.time()}", flush=True)

    def round_done(self, record: object) -> None:
        print(f"{MOMENT}{LAST} {time.time()}", flush=True)


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--ranks", type=measuring.numbers, default=[1, 3, 5], help="default 1,3,5; 1 is without mpirun")
    arguments = parser.parse_intermixed_args()
    words = measuring.settings(arguments, "")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        run = (*FEDMPI, "run", CONFIG, *words, "rounds=1", f"output.dir={folder}", "output.observers=[startup:Moments]")
        for ranks in arguments.ranks:
            lines += lines_of(ranks, run, arguments.pairs)
    print_lines(["command", "ranks", "median", SPREAD, "beside", "median", "ratio"], lines, 1)


def lines_of(ranks: int, run: Sequence[str], pairs: int) -> list[list[str]]:
    """Starts everything in turn; returns a line for each command."""
    commands = {**COMMANDS, FIRST: (run, FIRST, 0)}
    measures = {name: partial(started, ranks, words, code) for name, (words, _, code) in commands.items()}
    turns = measuring.in_turn(measures, pairs)
    seconds = {LAST: [moments[LAST] for moments in turns[FIRST]]}
    for name, (_, moment, _) in commands.items():
        seconds[name] = [moments[moment] for moments in turns[name]]
    lines = []
    for name, yardstick in BESIDE.items():
        beside_s = statistics.median(seconds[yardstick])
        ratio = statistics.median(seconds[name]) / beside_s
        taken = spread(seconds[name], ".2f", " s")
        lines.append([name, str(ranks), *taken, yardstick, f"{beside_s:.2f} s", f"{ratio:.2f}"])
    return lines


def started(ranks: int, words: Sequence[str], code: int) -> dict[str, float]:
    """Starts a command; returns the seconds to each moment that it prints, and to its end. Ends this program where the
    command ends with another exit code.
    """
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    # With the code of fedmpi compiled, as torch's is.
    variables = environment(ranks) | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": path}
    command, begin = [*start_words(ranks), sys.executable, *words], time.time()
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    found = {"ended": time.time() - begin}
    if done.returncode != code:
        sys.exit(f"{done.stderr}{command} ended with exit code {done.returncode}")
    for line in done.stdout.splitlines():
        if line.startswith(MOMENT):
            name, _, moment = line.removeprefix(MOMENT).rpartition(" ")
            found[name] = float(moment) - begin
    return found


if __name__ == "__main__":
    measuring.start(main)

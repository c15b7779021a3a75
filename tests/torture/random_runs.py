"""Random combinations of method, data, partition, precision and faults: the same bits on any ranks, or a line that
says which bytes differ.

    python -m tests.torture.random_runs [--seed 1] [--count 100] [--seconds 180] [--only NUMBER ...] [--folder DIR]

A combination is run as it is by one process, and in variants that must give the same bytes: on 1, 2, 3 and 5 ranks,
by each exchange, with and without training on rank 0, stopped and resumed on other ranks, failed in the middle of a
round (once or twice) and resumed, saved more or less often, under another PYTHONHASHSEED on each rank. All variants run
in one mpirun job (`combination_ranks.py`), which saves starts. `run_bytes.py` compares all checkpoints, client
memories, the partition, records and reports. A combination that every variant refuses alike, or in which all
fail alike (training diverged), counts as such. The exit code is 1 if anything differs.

`--seconds` waits for no combination after so long; what is drawn does not depend on it. `--only` runs these numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmpi.command.manners import Parser, run_command
from fedmpi.mpi.mpirun import start_words
from fedmpi.studies.arguments import number

from . import leave, new_folder, print_groups, processes
from .combinations import NUM_RANKS, Combination, draw, write_data
from .run_bytes import differences, leftovers

SILENT_S = 600.0
"""A combination takes seconds; a job that ends none for so long hangs."""
# Differences of a variant that are printed.
_SHOWN = 10


@dataclass(frozen=True)
class Outcome:
    """How a combination went: what its reference came to, its starts by ending, and a line for each variant that
    differs."""

    combination: Combination
    ending: str
    endings: Mapping[str, int]
    problems: tuple[str, ...]
    seconds: float


# Each rank has another hash seed.
_SEEDED = ("sh", "-c", 'PYTHONHASHSEED=$((OMPI_COMM_WORLD_RANK + 1)) exec "$@"', "sh")


def run(seed: int, numbers: Sequence[int], folder: Path, seconds: float = math.inf) -> Iterator[Outcome]:
    """The outcome of each combination as soon as it is there; a job that ends before its time is begun again.

    The job is ended when its last outcome is there: MPI's own end may wait for groups that have failed.
    """
    write_data(folder / "data")
    until, left = time.monotonic() + seconds, list(numbers)
    program = [*start_words(NUM_RANKS), *_SEEDED, *processes.program("combination_ranks"), str(folder), str(seed)]
    while left and time.monotonic() < until:
        process = processes.started([*program, *map(str, left)], folder / "log.txt")
        try:
            while left and time.monotonic() < until and process.poll() is None:
                outcome = _next(process, seed, left.pop(0), folder)
                yield outcome
                if outcome.ending == "lost":
                    break
        finally:
            processes.kill_all(process)


def _next(process: subprocess.Popen[bytes], seed: int, number: int, folder: Path) -> Outcome:
    """The outcome of the combination that runs now; `lost` with a job that ends before it, or hangs."""
    begun, combination, done = time.monotonic(), draw(seed, number, folder / "data"), folder / str(number) / "done"
    while not done.exists():
        seconds, has_ended = time.monotonic() - begun, process.poll() is not None
        if (has_ended and not done.exists()) or seconds > SILENT_S:
            why = f"the job ended with code {process.returncode}" if has_ended else f"no end within {SILENT_S:.0f} s"
            return Outcome(combination, "lost", {}, (f"{why}; see {folder / 'log.txt'}",), seconds)
        time.sleep(0.02)
    return judge(combination, done.parent, float(done.read_text()))


def judge(combination: Combination, folder: Path, seconds: float) -> Outcome:
    """Compares every variant with the first."""
    expected = _endings(folder, 0)[-1]
    counts: Counter[str] = Counter()
    problems: list[str] = []
    for nth, legs in enumerate(combination.variants):
        endings = _endings(folder, nth)
        counts.update(ending for ending, _ in endings)
        found = []
        if endings[-1] != expected:
            found.append(f"{' '.join(endings[-1])}, not {' '.join(expected)}")
        elif nth > 0 and expected[0] != "refused":
            runs = folder / "run-0", folder / f"run-{nth}"
            found += [*differences(*runs, is_finished=expected[0] == "finished"), *leftovers(runs[1])]
        if found:
            starts = "; then ".join(leg.text() for leg in legs)
            more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            problems.append(f"variant {nth}, {starts}: {'; '.join(found[:_SHOWN])}{more}")
    return Outcome(combination, expected[0], counts, tuple(problems), seconds)


def _endings(folder: Path, variant: int) -> list[tuple[str, str]]:
    """How each start of a variant ended, and with which error: that of the first rank that knows most."""
    found: dict[int, list[tuple[str, str]]] = {}
    for path in sorted((folder / "endings").glob(f"{variant}-*.json")):
        ended = json.loads(path.read_text())
        found.setdefault(int(path.name.split("-")[1]), []).append((ended["ending"], ended.get("text", "")))
    knows_less = {"finished": 1, "stopped": 1, "abandoned": 2}
    return [min(ranks, key=lambda ended: knows_less.get(ended[0], 0)) for _, ranks in sorted(found.items())]


def show(outcome: Outcome, seed: int) -> None:
    """A line for the combination; where something differs, what it was and how to have it again."""
    combination = outcome.combination
    starts = ", ".join(f"{count} {ending}" for ending, count in sorted(outcome.endings.items()))
    verdict = f"{len(outcome.problems)} of {len(combination.variants)} differ" if outcome.problems else "same bytes"
    what = f"{combination.number:5}  {combination.method:11} {outcome.seconds:6.1f} s  {starts:48}"
    print(f"{what} {verdict}", flush=True)
    if outcome.problems:
        print(f"  again: python -m tests.torture.random_runs --seed {seed} --only {combination.number}")
        print(f"  as one run: python -m fedmpi.main {shlex.join(combination.overrides)}")
        for problem in outcome.problems:
            print(f"  {problem}", flush=True)


def print_table(outcomes: Sequence[Outcome], seconds: float) -> None:
    """A row for each method, and all together."""

    def starts(those: Sequence[Outcome], *endings: str) -> int:
        return sum(count for one in those for ending, count in one.endings.items() if not endings or ending in endings)

    columns: dict[str, Callable[[Sequence[Outcome]], object]] = {
        "combinations": len,
        "variants": lambda those: sum(len(one.combination.variants) for one in those),
        "starts": starts,
        "stopped": lambda those: starts(those, "stopped"),
        "failed on purpose": lambda those: starts(those, "fault"),
        "refused": lambda those: sum(one.ending == "refused" for one in those),
        "diverged": lambda those: sum(one.ending == "failed" for one in those),
        "with differences": lambda those: sum(bool(one.problems) for one in those),
        "seconds": lambda those: f"{sum(one.seconds for one in those):.0f}",
    }
    print()
    print_groups("method", outcomes, lambda one: one.combination.method, columns)
    num_methods = len({one.combination.method for one in outcomes})
    print(f"{len(outcomes)} combinations of {num_methods} methods in {seconds:.0f} s")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("python -m tests.torture.random_runs", __doc__)
    parser.add_argument("--seed", type=number(int, 0), default=1)
    parser.add_argument("--count", type=number(int, 1), default=100, help="combinations, from number 0 on")
    parser.add_argument("--only", type=number(int, 0), nargs="+", metavar="NUMBER")
    parser.add_argument("--seconds", type=number(float, 0), default=math.inf, help="wait for none after so long")
    parser.add_argument("--folder", type=Path, help="a new one, to keep what the runs leave")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(lambda: _run_all(_arguments(argv)))


def _run_all(options: argparse.Namespace) -> int:
    folder = new_folder(options.folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the job
    begun, outcomes = time.monotonic(), list[Outcome]()
    numbers = list(dict.fromkeys(options.only or range(options.count)))
    for outcome in run(options.seed, numbers, folder, options.seconds):
        outcomes.append(outcome)
        show(outcome, options.seed)
        if not outcome.problems and options.folder is None:
            shutil.rmtree(folder / str(outcome.combination.number))
    print_table(outcomes, time.monotonic() - begun)
    return leave(folder, options.folder, has_failed=any(outcome.problems for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

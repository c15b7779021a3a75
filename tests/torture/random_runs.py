"""Random combinations of method, data, partition, precision and faults: the same bits on any ranks, or a line that
says which bytes differ.

    python -m tests.torture.random_runs [--seed 1] [--count 100] [--seconds 180] [--only NUMBER ...] [--folder DIR]

A combination is run as it is by one process, and in variants that must give the same bytes: on 1, 2, 3 and 5 ranks,
by each exchange, with and without training on rank 0, stopped and resumed on other ranks, failed in the middle of a
round (once or twice) and resumed, saved more or less often, under another PYTHONHASHSEED on each rank. All variants run
in one mpirun job whose ranks form groups (`combination_ranks.py`). `run_bytes.py` compares all checkpoints, client
memories, the partition, records and reports. A combination that every variant refuses alike, or in which all
fail alike (training diverged), counts as such. The exit code is 1 if anything differs.

`--seconds` begins no combination after so long; what is drawn does not depend on it. `--only` runs these numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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
from typing import Any

from fedmpi.command.manners import Parser, run_command
from fedmpi.studies.arguments import number
from fedmpi.studies.launch import environment, files_in, launcher

from . import findable, leave, new_folder, print_groups, program
from .combinations import NUM_RANKS, Combination, draw, write_data
from .run_bytes import differences, leftovers

SILENT_S = 600.0
"""A combination takes seconds; a job that ends none for so long hangs."""
_END_S = 20.0
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


def run(seed: int, numbers: Sequence[int], folder: Path, seconds: float | None) -> Iterator[Outcome]:
    """The outcome of each combination as soon as it is there; a job that ends before its time is begun again."""
    write_data(folder / "data")
    until = None if seconds is None else time.monotonic() + seconds
    left = list(numbers)
    while left and (until is None or time.monotonic() < until):
        with _job(seed, left, folder) as process:
            while left and (outcome := _next(process, seed, left[0], folder, until)):
                del left[0]
                yield outcome
                if outcome.ending == "lost":  # with the job
                    break
        if (folder / "stop").exists():
            return


@contextlib.contextmanager
def _job(seed: int, numbers: Sequence[int], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The job under way. It ends by itself where it has none of its combinations left, or was told to stop."""
    words = [*launcher(NUM_RANKS), *program("combination_ranks"), str(folder), str(seed), *map(str, numbers)]
    own = environment(NUM_RANKS) | findable() | files_in(folder)
    with open(folder / "log.txt", "ab") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own, start_new_session=True
        )
    ends = [process.terminate, process.kill]
    try:
        yield process
        ends.insert(0, lambda: None)
    finally:
        for end in ends:
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
                break


def _next(
    process: subprocess.Popen[bytes], seed: int, number: int, folder: Path, until: float | None
) -> Outcome | None:
    """The outcome of the combination that runs now; None if the time is up and it was not begun."""
    begun, place = time.monotonic(), folder / str(number)
    while not (place / "done").exists():
        if until is not None and time.monotonic() > until:
            (folder / "stop").touch()
        has_ended = process.poll() is not None
        if has_ended and not (place / "done").exists():
            if (folder / "stop").exists() and not place.exists():
                return None
            return _lost(seed, number, folder, f"the job ended with code {process.returncode}", begun)
        if time.monotonic() - begun > SILENT_S:
            return _lost(seed, number, folder, f"no end within {SILENT_S:.0f} s", begun)
        time.sleep(0.02)
    return judge(draw(seed, number, folder / "data"), place, float((place / "done").read_text()))


def _lost(seed: int, number: int, folder: Path, why: str, begun: float) -> Outcome:
    combination = draw(seed, number, folder / "data")
    return Outcome(combination, "lost", {}, (f"{why}; see {folder / 'log.txt'}",), time.monotonic() - begun)


def judge(combination: Combination, folder: Path, seconds: float) -> Outcome:
    """Compares every variant with the first."""
    reference, _ = _endings(folder, 0)[-1]
    counts: Counter[str] = Counter()
    problems: list[str] = []
    for nth, legs in enumerate(combination.variants):
        endings = _endings(folder, nth)
        counts.update(ending for ending, _ in endings)
        last, text = endings[-1]
        expected = _endings(folder, 0)[-1]
        found = []
        if (last, text) != expected:
            found.append(f"{last} {text}, not {reference} {expected[1]}")
        elif nth > 0 and reference != "refused":
            pair = folder / "run-0", folder / f"run-{nth}"
            found += [*differences(*pair, is_finished=reference == "finished"), *leftovers(pair[1])]
        if found:
            starts = "; then ".join(leg.text() for leg in legs)
            more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            problems.append(f"variant {nth}, {starts}: {'; '.join(found[:_SHOWN])}{more}")
    return Outcome(combination, reference, counts, tuple(problems), seconds)


def _endings(folder: Path, variant: int) -> list[tuple[str, str]]:
    """How each start of a variant ended, and with which error: that of the first rank that knows."""
    by_leg: dict[int, list[dict[str, Any]]] = {}
    for path in sorted((folder / "endings").glob(f"{variant}-*.json")):
        by_leg.setdefault(int(path.name.split("-")[1]), []).append(json.loads(path.read_text()))
    found = []
    for _, ranks in sorted(by_leg.items()):
        known = [ended for ended in ranks if ended["ending"] != "abandoned"] or ranks
        told = next((ended for ended in known if ended["ending"] in ("failed", "fault", "refused")), known[0])
        found.append((told["ending"], told.get("text", "")))
    return found


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
    parser.add_argument("--seconds", type=number(float, 0), help="begin none after so long")
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

"""Random combinations of method, data, partition, precision and faults: the same bits on any ranks, or a line that
says which bytes differ.

    python -m tests.torture.random_runs [--seed 1] [--count 100] [--seconds 180] [--only NUMBER ...] [--folder DIR]

A combination is run as it is by one process, and in variants that must give the same bytes: on 1, 2, 3 and 5 ranks,
by each exchange, with and without training on rank 0, stopped and resumed on other ranks, failed in the middle of a
round (once or twice) and resumed, saved more or less often, under another PYTHONHASHSEED on each rank. All variants run
in one mpirun job whose ranks form groups (`tests/torture/combination_ranks.py`). `tests/torture/run_bytes.py` compares all checkpoints,
client memories, the partition, records and reports. A combination that every variant refuses alike, or in which all
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
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmpi.errors import RunDirError, UserError
from fedmpi.store.files import writing
from fedmpi.studies.launch import Parser, environment, files_in, launcher, number
from fedmpi.studies.table_text import print_lines

from . import findable, program
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
        with _Job(seed, left, folder) as process:
            while left and (outcome := _next(process, seed, left[0], folder, until)):
                del left[0]
                yield outcome
                if outcome.ending == "lost":  # with the job
                    break
        if (folder / "stop").exists():
            return


class _Job:
    """The job under way; it is ended on leaving."""

    def __init__(self, seed: int, numbers: Sequence[int], folder: Path) -> None:
        words = [*program("combination_ranks"), str(folder), str(seed)]
        self._words = [*launcher(NUM_RANKS), *words, *map(str, numbers)]
        self._log, self._folder = folder / "log.txt", folder

    def __enter__(self) -> subprocess.Popen[bytes]:
        own = environment(NUM_RANKS) | findable() | files_in(self._folder)
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own, start_new_session=True
            )
        return self._process

    def __exit__(self, *error: object) -> None:
        """Waits for its end where it has none of its combinations left, or was told to stop."""
        process = self._process
        for end in (*([] if error[0] else [lambda: None]), process.terminate, process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
                return


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
    heads = ("method", "combinations", "variants", "starts", "stopped", "failed on purpose", "refused", "diverged",
             "with differences", "seconds")  # fmt: skip
    rows = []
    methods = sorted({outcome.combination.method for outcome in outcomes})
    for method in [*methods, "all"]:
        mine = [outcome for outcome in outcomes if method in ("all", outcome.combination.method)]
        endings = sum((Counter(outcome.endings) for outcome in mine), Counter())
        counts = [len(mine), sum(len(outcome.combination.variants) for outcome in mine), sum(endings.values())]
        counts += [endings["stopped"], endings["fault"]]
        counts += [sum(outcome.ending == ending for outcome in mine) for ending in ("refused", "failed")]
        counts += [sum(bool(outcome.problems) for outcome in mine)]
        rows.append((method, *map(str, counts), f"{sum(outcome.seconds for outcome in mine):.0f}"))
    print()
    print_lines(heads, rows, 1, sys.stdout)
    print(f"{len(outcomes)} combinations of {len(methods)} methods in {seconds:.0f} s")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("tests/torture/random_runs.py", __doc__)
    parser.add_argument("--seed", type=number(int, 0), default=1)
    parser.add_argument("--count", type=number(int, 1), default=100, help="combinations, from number 0 on")
    parser.add_argument("--only", type=number(int, 0), nargs="+", metavar="NUMBER")
    parser.add_argument("--seconds", type=number(float, 0), help="begin none after so long")
    parser.add_argument("--folder", type=Path, help="a new one, to keep what the runs leave")
    options = parser.parse_args(argv)
    if options.folder and options.folder.exists() and any(options.folder.iterdir()):
        raise RunDirError(str(options.folder), "is not empty; take a new --folder")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    try:
        options = _arguments(argv)
        folder = (options.folder or Path(tempfile.mkdtemp(prefix="fedmpi-random-"))).resolve()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the job
        begun, outcomes = time.monotonic(), list[Outcome]()
        numbers = list(dict.fromkeys(options.only or range(options.count)))
        for outcome in run(options.seed, numbers, folder, options.seconds):
            outcomes.append(outcome)
            show(outcome, options.seed)
            if not outcome.problems and options.folder is None:
                shutil.rmtree(folder / str(outcome.combination.number))
    except UserError as error:
        print(error.text(), file=sys.stderr, flush=True)
        return error.exit_code
    print_table(outcomes, time.monotonic() - begun)
    has_failed = any(outcome.problems for outcome in outcomes)
    if has_failed:
        print(f"what the runs left: {folder}")
    elif options.folder is None:
        shutil.rmtree(folder)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())

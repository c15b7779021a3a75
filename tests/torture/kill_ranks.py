"""Kills and stops ranks of running jobs at seeded random moments, and compares what becomes of a run with a quiet one.

    python -m tests.torture.kill_ranks [--kills 40] [--ranks 5] [--seed 1] [--methods CASE ...] [--folder DIR]
        [--whole-job | --stops]

A job starts as `mpirun --with-ft ulfm` and loses one rank or more (workers and rank 0, one after the other or at once,
in every stage of a round). With `--whole-job`, mpirun and all ranks get SIGKILL at once, one to three times, and the
run is resumed on another number of ranks. With `--stops`, a rank gets SIGSTOP for 5 to 60 s, with no limit to a round,
or one (`mpi.round_timeout_s`) above or below that time; where the others give up, the run is resumed.

Each run must end with exit code 0 and the bytes of the quiet run (`tests/torture/run_bytes.py`): checkpoints, client memories,
records. Prints a line an attack, then a table; the exit code is 1 if any run did not end so. `--methods memory` takes
all cases whose clients keep something between rounds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedmpi.errors import RunDirError, UserError
from fedmpi.store.files import writing
from fedmpi.studies.launch import Parser, number
from fedmpi.studies.table_text import print_lines

from .attacks import CASES, WITH_MEMORY, Outcome, jobs, quiet, run


def print_kills(outcome: Outcome, number: int) -> None:
    """A line for each attack that came to pass."""
    verdict = outcome.problem or "same bytes"
    recovery_s = {loss["rank"]: loss["recovery_s"] for loss in outcome.losses}
    for kill in outcome.killed:
        took = f"{recovery_s[kill.rank]:9.3f}" if kill.rank in recovery_s else "        -"
        moment = f"{kill.stage} + {kill.delay_s * 1000:.0f} ms"
        if kill.stop_s:
            moment += f", {kill.stop_s:g} s (limit {outcome.job.timeout_s or 'none'})"
        what = f"{outcome.job.case:19} {kill.rank:4} {kill.round:5}  {moment:45}"
        print(f"{number:3}  {what} {took}  {verdict}", flush=True)
    if outcome.problem and not outcome.killed:
        print(f"{number:3}  {outcome.job.case}: {outcome.problem}, and no rank was attacked", flush=True)


def print_stages(outcomes: Sequence[Outcome]) -> None:
    """How many attacks there were in each stage, and what recovery took."""
    by_stage: dict[str, list[float]] = {}
    for outcome in outcomes:
        recovery_s = {loss["rank"]: loss["recovery_s"] for loss in outcome.losses}
        for kill in outcome.killed:
            what = f"{'rank 0' if kill.rank == 0 else 'worker'}, {kill.stage.replace('_', ' ')}"
            by_stage.setdefault(what, []).append(recovery_s.get(kill.rank, float("nan")))
    rows = []
    for what, seconds in sorted(by_stage.items()):
        known = [second for second in seconds if second == second]
        numbers = [f"{statistics.median(known):.3f}", f"{max(known):.3f}"] if known else ["-", "-"]
        rows.append([what, str(len(seconds)), *numbers])
    print()
    print_lines(("attacked, in stage", "attacks", "median s", "longest s"), rows, 1, sys.stdout)


def print_cases(outcomes: Sequence[Outcome]) -> None:
    """A row for each case, and all together."""
    rows = []
    cases = list(dict.fromkeys(outcome.job.case for outcome in outcomes))
    for case in [*cases, "all"]:
        mine = [outcome for outcome in outcomes if case in ("all", outcome.job.case)]
        starts, killed = sum(len(outcome.codes) for outcome in mine), [kill for one in mine for kill in one.killed]
        of_server = sum(kill.rank == 0 for kill in killed)
        bad = sum(bool(outcome.problem) for outcome in mine)
        counts = [len(mine), starts, len(killed) - of_server, of_server, len(mine) - bad, bad]
        rows.append([case, *map(str, counts), f"{sum(outcome.seconds for outcome in mine):.0f}"])
    heads = ("case", "runs", "starts", "workers", "rank 0", "same bytes", "not", "seconds")
    print_lines(heads, rows, 1, sys.stdout)
    good, attacks = sum(not outcome.problem for outcome in outcomes), sum(len(outcome.killed) for outcome in outcomes)
    print(f"{attacks} attacks on {len(outcomes)} runs; {good} ended with the bytes of the quiet run, "
          f"{len(outcomes) - good} not")  # fmt: skip


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("tests/torture/kill_ranks.py", __doc__)
    parser.add_argument("--kills", type=number(int, 1), default=40, help="stop after so many attacks")
    parser.add_argument("--ranks", type=number(int, 2), default=5, help="of each job")
    parser.add_argument("--seed", type=number(int, 0), default=1)
    choices = [*CASES, "memory"]
    parser.add_argument("--methods", nargs="+", choices=choices, default=list(CASES), metavar="CASE")
    parser.add_argument("--folder", type=Path, help="a new one, to keep run directories and logs in")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--whole-job", dest="kind", action="store_const", const="job", default="ranks")
    kinds.add_argument("--stops", dest="kind", action="store_const", const="stop")
    options = parser.parse_args(argv)
    named = [case for name in options.methods for case in (WITH_MEMORY if name == "memory" else (name,))]
    options.methods = list(dict.fromkeys(named))
    if options.folder and options.folder.exists() and any(options.folder.iterdir()):
        raise RunDirError(str(options.folder), "is not empty; take a new --folder")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    try:
        options = _arguments(argv)
        folder = (options.folder or Path(tempfile.mkdtemp(prefix="fedmpi-kills-"))).resolve()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
    except UserError as error:
        print(error.text(), file=sys.stderr, flush=True)
        return error.exit_code
    print(f"run  {'case':19} {'rank':4} {'round':5}  {'stage + delay':45} {'recovery':>9}  outcome")
    outcomes: list[Outcome] = []
    for nth, job in enumerate(jobs(options.methods, options.ranks, options.seed, options.kind)):
        outcomes.append(run(job, folder, nth, quiet(job.case, folder)))
        print_kills(outcomes[-1], nth)
        if sum(len(outcome.killed) for outcome in outcomes) >= options.kills:
            break
    if options.kind == "ranks":
        print_stages(outcomes)
    print_cases(outcomes)
    failed = any(outcome.problem for outcome in outcomes)
    if options.folder is None and not failed:
        shutil.rmtree(folder)
    elif failed:
        print(f"logs and run directories: {folder}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

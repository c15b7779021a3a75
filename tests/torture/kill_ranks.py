"""Kills and stops ranks of running jobs at seeded random moments, and compares what becomes of a run with a quiet one.

    python -m tests.torture.kill_ranks [--kills 40] [--ranks 5] [--seed 1] [--methods CASE ...] [--folder DIR]
        [--whole-job | --stops]

A job starts as `mpirun --with-ft ulfm` and loses one rank or more (workers and rank 0, one after the other or at once,
in every stage of a round). With `--whole-job`, mpirun and all ranks get SIGKILL at once, one to three times, and the
run is resumed on another number of ranks. With `--stops`, a rank gets SIGSTOP for 5 to 60 s, with no limit to a round,
or one (`mpi.round_timeout_s`) above or below that time; where the others give up, the run is resumed.

Each run must end with exit code 0 and the bytes of the quiet run (`run_bytes.py`): checkpoints, client memories,
records. Prints a line an attack, then a table; the exit code is 1 if any run did not end so. `--methods memory` takes
all cases whose clients keep something between rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fedmpi.command.manners import Parser, run_command
from fedmpi.studies.arguments import number

from . import leave, new_folder, print_groups
from .attacks import CASES, WITH_MEMORY, Kill, Outcome, jobs, quiet, run


def print_kills(outcome: Outcome, nth: int) -> None:
    """A line for each attack that came to pass."""
    verdict = outcome.problem or "same bytes"
    recovery_s = {loss["rank"]: loss["recovery_s"] for loss in outcome.losses}
    for kill in outcome.killed:
        took = f"{recovery_s[kill.rank]:9.3f}" if kill.rank in recovery_s else "        -"
        moment = f"{kill.stage} + {kill.delay_s * 1000:.0f} ms"
        if kill.stop_s:
            moment += f", {kill.stop_s:g} s (limit {outcome.job.timeout_s or 'none'})"
        what = f"{outcome.job.case:19} {kill.rank:4} {kill.round:5}  {moment:45}"
        print(f"{nth:3}  {what} {took}  {verdict}", flush=True)
    if outcome.problem and not outcome.killed:
        print(f"{nth:3}  {outcome.job.case}: {outcome.problem}, and no rank was attacked", flush=True)


def print_stages(outcomes: Sequence[Outcome]) -> None:
    """How many attacks there were in each stage, and what recovery took."""
    attacks = []
    for outcome in outcomes:
        recovery_s = {loss["rank"]: loss["recovery_s"] for loss in outcome.losses}
        attacks += [(kill, recovery_s.get(kill.rank)) for kill in outcome.killed]

    def told(tell: Callable[[Iterable[float]], float]) -> Callable[[Sequence[tuple[Kill, float | None]]], str]:
        return lambda those: f"{tell(known):.3f}" if (known := [s for _, s in those if s is not None]) else "-"

    def where(attack: tuple[Kill, float | None]) -> str:
        return f"{'worker' if attack[0].rank else 'rank 0'}, {attack[0].stage.replace('_', ' ')}"

    columns = {"attacks": len, "median s": told(statistics.median), "longest s": told(max)}
    print()
    print_groups("attacked, in stage", attacks, where, columns)


def print_cases(outcomes: Sequence[Outcome]) -> None:
    """A row for each case, and all together."""

    def killed(those: Sequence[Outcome], *, server: bool) -> int:
        return sum((kill.rank == 0) == server for outcome in those for kill in outcome.killed)

    columns: dict[str, Callable[[Sequence[Outcome]], object]] = {
        "runs": len,
        "starts": lambda those: sum(len(outcome.codes) for outcome in those),
        "workers": lambda those: killed(those, server=False),
        "rank 0": lambda those: killed(those, server=True),
        "same bytes": lambda those: sum(not outcome.problem for outcome in those),
        "not": lambda those: sum(bool(outcome.problem) for outcome in those),
        "seconds": lambda those: f"{sum(outcome.seconds for outcome in those):.0f}",
    }
    print_groups("case", outcomes, lambda outcome: outcome.job.case, columns)
    good, attacks = sum(not outcome.problem for outcome in outcomes), sum(len(outcome.killed) for outcome in outcomes)
    ends = f"{good} ended with the bytes of the quiet run, {len(outcomes) - good} not"
    print(f"{attacks} attacks on {len(outcomes)} runs; {ends}")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("python -m tests.torture.kill_ranks", __doc__)
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
    return options


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(lambda: _kill(_arguments(argv)))


def _kill(options: argparse.Namespace) -> int:
    folder = new_folder(options.folder)
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
    return leave(folder, options.folder, has_failed=any(outcome.problem for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

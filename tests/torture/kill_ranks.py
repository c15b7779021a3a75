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

An attack is aimed at a moment of a run (`killed_rank.py` waits for it there), so a seed attacks the same moments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedmpi.command.manners import Parser, run_command
from fedmpi.config import yaml_text
from fedmpi.main import main as fedmpi_main
from fedmpi.mpi.mpirun import start_words
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.arguments import number

from . import leave, new_folder, print_groups, processes
from .moments import SERVER_STAGES, WORKER_STAGES
from .run_bytes import differences, leftovers

ROUNDS = 8
LIMIT_S = 600.0
"""A start here takes seconds; this only ends a hang."""
_FILE = yaml_text.parse(Path(__file__).with_suffix(".yaml").read_text()).value
COMMON = (*_FILE["common"].split(), f"rounds={ROUNDS}")
CASES: Mapping[str, Sequence[str]] = {
    name: [*_FILE["nets"][net].split(), *words.split()] for name, (net, words) in _FILE["cases"].items()
}
WITH_MEMORY: Sequence[str] = _FILE["with_memory"]

Kind = Literal["ranks", "job", "stop"]


@dataclass(frozen=True)
class Kill:
    """A rank (as the job starts) is attacked `delay_s` after it first enters `stage` of round `round`."""

    rank: int
    round: int
    stage: str
    delay_s: float
    stop_s: float = 0.0
    """The rank is stopped for so long; 0 kills it."""


@dataclass(frozen=True)
class Job:
    """A run and the attacks on it, one list for each of its first starts; later starts are left alone.

    `ranks` are those of each start, the last one's those of all after it. `kind` is what an attack hits: the `ranks`
    themselves, of a job that outlives them; the whole `job`; or a rank that is to `stop` for a while.
    """

    case: str
    ranks: int
    kills: tuple[Kill, ...]
    kind: Kind = "ranks"
    resumed: tuple[tuple[int, tuple[Kill, ...]], ...] = ()
    """Ranks and attacks of each start after the first."""
    timeout_s: float = 0.0
    """`mpi.round_timeout_s`."""

    @property
    def starts(self) -> tuple[tuple[int, tuple[Kill, ...]], ...]:
        return ((self.ranks, self.kills), *self.resumed)


@dataclass(frozen=True)
class Outcome:
    """What became of a run: the attacks that came to pass, exit codes of its starts, what is wrong ("" for nothing)."""

    job: Job
    killed: tuple[Kill, ...]
    codes: tuple[int, ...]
    problem: str
    losses: tuple[Mapping[str, Any], ...]
    seconds: float

    def recovery_s(self, kill: Kill) -> float | None:
        """What it took the others to continue without that rank; None where there is no record of its loss."""
        return next((loss["recovery_s"] for loss in self.losses if loss["rank"] == kill.rank), None)


def jobs(cases: Sequence[str], ranks: int, seed: int, kind: Kind = "ranks") -> Iterator[Job]:
    """Jobs without end, the cases in turn."""
    draw = random.Random(seed)
    make = {"ranks": _ranks_killed, "job": _job_killed, "stop": _rank_stopped}[kind]
    while True:
        for case in cases:
            yield make(draw, case, ranks)


def _ranks_killed(draw: random.Random, case: str, ranks: int) -> Job:
    """1 to `ranks` - 1 kills, of workers and of rank 0, some at the same moment."""
    victims = draw.sample(range(ranks), min(draw.choice([1, 2, 2, 3, ranks - 1]), ranks - 1))
    kills = [_kill(draw, rank) for rank in victims]
    if draw.random() < 0.4:  # all in one moment
        first = kills[0]
        kills = [Kill(kill.rank, first.round, kill.stage, kill.delay_s) for kill in kills]
    return Job(case, ranks, tuple(kills))


def _job_killed(draw: random.Random, case: str, ranks: int) -> Job:
    """Killed once to three times as a whole, each time resumed on another number of ranks."""
    starts = []
    size = ranks
    for _ in range(draw.choice([1, 2, 2, 3])):
        starts.append((size, (_kill(draw, draw.randrange(size)),)))
        size = draw.choice([other for other in (1, 2, 3, ranks) if other != size])
    starts.append((size, ()))
    return Job(case, *starts[0], kind="job", resumed=tuple(starts[1:]))


def _rank_stopped(draw: random.Random, case: str, ranks: int) -> Job:
    """Stopped for 5 to 60 s, with no limit to a round, one far above that time, or one below it."""
    stop_s = round(draw.choice([5, 10, 20, draw.uniform(5, 60)]), 1)
    timeout_s = draw.choice([0.0, 100.0, max(1.0, round(stop_s / 12, 1)), max(1.0, round(stop_s / 3, 1))])
    kill = _kill(draw, draw.randrange(ranks))
    stopped = Kill(kill.rank, kill.round, kill.stage, kill.delay_s, stop_s)
    return Job(case, ranks, (stopped,), kind="stop", timeout_s=timeout_s)


def _kill(draw: random.Random, rank: int) -> Kill:
    stage = draw.choice(SERVER_STAGES if rank == 0 else WORKER_STAGES)
    # Every second round is tested and saved.
    number = draw.randrange(2, ROUNDS + 1, 2) if stage in ("evaluation", "saving") else draw.randint(1, ROUNDS)
    return Kill(rank, number, stage, draw.choice([0.0, draw.uniform(0, 0.005), draw.uniform(0, 0.05)]))


def quiet(case: str, folder: Path) -> Path:
    """The run directory of an undisturbed run with all its checkpoints, made in this process if it is not there."""
    run_dir = folder / f"quiet-{case}"
    if not run_dir.exists():
        kept = ("output.checkpoint_every=1", f"output.keep_checkpoints={ROUNDS}")
        with open(folder / f"quiet-{case}.log", "w") as log, contextlib.redirect_stdout(log):
            assert fedmpi_main([*COMMON, *CASES[case], *kept, "--run-dir", str(run_dir)]) == 0
    return run_dir


def run(job: Job, folder: Path, number: int, expected: Path) -> Outcome:
    """Starts the job, again after an attack that ends it, waits for its end and compares it with `expected`."""
    run_dir, killed, codes = folder / f"job-{number}", list[Kill](), list[int]()
    started = time.monotonic()
    for nth, (ranks, kills) in enumerate(job.starts):
        markers = folder / f"killed-{number}-{nth}"
        codes.append(_start(job, ranks, kills, markers, run_dir))
        killed += [kill for kill in kills if (markers / str(kill.rank)).exists()]
    if job.kind == "stop" and -1 not in codes and not RunDir(run_dir).checkpoint_path(ROUNDS).exists():
        # Others have given up, or a starved machine has not kept the limit. Under ULFM mpirun's exit code can be 0.
        codes.append(_start(replace(job, timeout_s=0.0), 2, (), folder / f"killed-{number}-again", run_dir))
    seconds = time.monotonic() - started
    losses = [loss for start in manifest.read_starts(RunDir(run_dir)) for loss in start.get("losses", [])]
    problem = _problem(job, codes, run_dir, expected) or _untold(job, killed, losses)
    return Outcome(job, tuple(killed), tuple(codes), problem, tuple(losses), seconds)


def _start(job: Job, ranks: int, kills: Sequence[Kill], markers: Path, run_dir: Path) -> int:
    """The exit code of one start; -1 for a hang, which is ended."""
    markers.mkdir()
    # What the rank does to itself: 0 it kills itself, null it only says that the moment has come, else it stops.
    pairs = [(kill, None if job.kind == "job" else kill.stop_s) for kill in kills]
    told = json.dumps([(kill.rank, kill.round, kill.stage, kill.delay_s, stop_s) for kill, stop_s in pairs])
    mpirun, ulfm = start_words(ranks), ["--with-ft", "ulfm"] if job.kind != "job" and ranks > 1 else []
    words = [*mpirun[:1], *ulfm, *mpirun[1:], *processes.program("killed_rank"), str(markers), told]
    words += [*COMMON, *CASES[job.case], "--run-dir", str(run_dir)]
    words += [f"mpi.round_timeout_s={job.timeout_s:g}"] if job.timeout_s else []
    words += ["--resume"] if run_dir.exists() else []
    process = processes.started(words, run_dir.with_name(f"{run_dir.name}.log"))
    until = time.monotonic() + LIMIT_S + sum(3 * kill.stop_s for kill in kills)
    while process.poll() is None:
        is_time = job.kind == "job" and any((markers / str(kill.rank)).exists() for kill in kills)
        if is_time or time.monotonic() > until:
            processes.kill_all(process)
            return 0 if is_time else -1
        time.sleep(0.002)
    return process.returncode


def _problem(job: Job, codes: Sequence[int], run_dir: Path, expected: Path) -> str:
    if -1 in codes:
        return "hangs"
    if codes[-1]:
        return f"exit code {codes[-1]}"
    if job.kind == "stop" and len(codes) > 1 and (not job.timeout_s or job.kills[0].stop_s < job.timeout_s):
        return f"ended with {codes[0]}, though others wait for longer than the rank was stopped"
    found = differences(expected, run_dir) + (leftovers(run_dir) if job.kind == "job" else [])
    return f"differs: {'; '.join(found[:5])}" if found else ""


def _untold(job: Job, killed: Sequence[Kill], losses: Sequence[Mapping[str, Any]]) -> str:
    """Each loss must be on record; only one of the last round may come when nobody looks any more."""
    if job.kind != "ranks":
        return ""
    told = {loss["rank"] for loss in losses}
    missing = [str(kill.rank) for kill in killed if kill.rank not in told and kill.round < ROUNDS]
    return f"no record of the loss of rank {', '.join(missing)}" if missing else ""


# The program.


def print_kills(outcome: Outcome, nth: int) -> None:
    """A line for each attack that came to pass."""
    verdict = outcome.problem or "same bytes"
    for kill in outcome.killed:
        recovery_s = outcome.recovery_s(kill)
        took = "-" if recovery_s is None else f"{recovery_s:.3f}"
        moment = f"{kill.stage} + {kill.delay_s * 1000:.0f} ms"
        if kill.stop_s:
            moment += f", {kill.stop_s:g} s (limit {outcome.job.timeout_s or 'none'})"
        what = f"{outcome.job.case:19} {kill.rank:4} {kill.round:5}  {moment:45}"
        print(f"{nth:3}  {what} {took:>9}  {verdict}", flush=True)
    if outcome.problem and not outcome.killed:
        print(f"{nth:3}  {outcome.job.case}: {outcome.problem}, and no rank was attacked", flush=True)


def print_stages(outcomes: Sequence[Outcome]) -> None:
    """How many attacks there were in each stage, and what recovery took."""

    def told(tell: Callable[[Iterable[float]], float]) -> Callable[[Sequence[tuple[Kill, float | None]]], str]:
        return lambda those: f"{tell(known):.3f}" if (known := [s for _, s in those if s is not None]) else "-"

    attacks = [(kill, outcome.recovery_s(kill)) for outcome in outcomes for kill in outcome.killed]
    columns = {"attacks": len, "median s": told(statistics.median), "longest s": told(max)}
    print()
    print_groups(
        "attacked, in stage", attacks, lambda one: f"{_role(one[0])}, {one[0].stage.replace('_', ' ')}", columns
    )


def _role(kill: Kill) -> str:
    return "worker" if kill.rank else "rank 0"


def print_cases(outcomes: Sequence[Outcome]) -> None:
    """A row for each case, and all together."""

    def killed(role: str) -> Callable[[Sequence[Outcome]], int]:
        return lambda those: sum(_role(kill) == role for outcome in those for kill in outcome.killed)

    columns: dict[str, Callable[[Sequence[Outcome]], object]] = {
        "runs": len,
        "starts": lambda those: sum(len(outcome.codes) for outcome in those),
        "workers": killed("worker"),
        "rank 0": killed("rank 0"),
        "same bytes": lambda those: sum(not outcome.problem for outcome in those),
        "not": lambda those: sum(bool(outcome.problem) for outcome in those),
        "seconds": lambda those: f"{sum(outcome.seconds for outcome in those):.0f}",
    }
    print_groups("case", outcomes, lambda outcome: outcome.job.case, columns)


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
    return run_command(lambda: _attack(_arguments(argv)))


def _attack(options: argparse.Namespace) -> int:
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

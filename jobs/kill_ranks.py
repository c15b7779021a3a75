"""Kills ranks of running jobs at seeded random moments, and compares what the others make of it with a quiet run.

    python jobs/kill_ranks.py [--kills 40] [--ranks 5] [--seed 1] [--methods fedavg fedhm ...] [--folder DIR]

Each job starts as `mpirun --with-ft ulfm` and loses one rank or more (workers and rank 0, one after
the other or at once, in every stage of a round). It must end with exit code 0 and the bits of the quiet
run: server state, client memories, records. Prints a line a kill, then what recovery took by stage; the
exit code is 1 if any job did not end so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from running import Parser, environment, number

from fedmpi.errors import RunDirError, UserError
from fedmpi.output import RunDir, checkpoint, digest_of, manifest, read_records
from fedmpi.output.files import writing
from fedmpi.output.records import NOT_RESULTS

ROUNDS = 8
LIMIT_S = 180.0
"""A job here takes seconds; this only ends a hang."""

COMMON = (
    "data.name=synthetic", "data.shape=[1,8,8]", "data.classes=4", "data.num_train=240", "data.num_test=96",
    "clients.count=12", "clients.per_round=8", f"rounds={ROUNDS}", "train.local_epochs=1", "train.batch_size=8",
    "train.lr=0.05", "train.schedule.milestones=[4]", "evaluation.batch_size=16", "evaluation.every=2",
    "output.progress=plain", "output.tensorboard=false", "output.checkpoint_every=2",
)  # fmt: skip
_SMALL = ("model.width=0.125", "model.blocks=[1,1]")
CASES: Mapping[str, tuple[str, ...]] = {
    "fedavg": (*_SMALL, "method.name=fedavg"),
    "fedavg-reduce": (*_SMALL, "method.name=fedavg", "mpi.exchange=reduce", "mpi.server_trains=true"),
    # 13 MB a message: ranks die in the middle of one.
    "fedavg-large": ("model.name=mlp", "model.hidden=[1600,1900]", "method.name=fedavg"),
    "fedhm": (*_SMALL, "method.name=fedhm", "clients.tier_assignment=dynamic"),
    "prism-reduce": (*_SMALL, "method.name=prism", "mpi.exchange=reduce"),
    "scaffold": (*_SMALL, "method.name=scaffold"),
    "hermes": (*_SMALL, "method.name=hermes", "method.accuracy_threshold=0.2", "method.intersection=all"),
    "topk": (*_SMALL, "method.name=topk"),
    "lgfedavg": (*_SMALL, "method.name=lgfedavg"),
}
"""What is run. Clients of the last four keep memories."""

SERVER_STAGES = ("communication", "aggregation", "svd", "evaluation", "saving")
WORKER_STAGES = ("communication", "local_training", "submodel_creation", "aggregation", "evaluation")


@dataclass(frozen=True)
class Kill:
    """Rank `rank` (as the job starts) is killed `delay_s` after it first enters `stage` of round `round`."""

    rank: int
    round: int
    stage: str
    delay_s: float


@dataclass(frozen=True)
class Job:
    """One run, and the ranks that it is to lose."""

    case: str
    ranks: int
    kills: tuple[Kill, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a job: the kills that came to pass, and what is wrong ("" for nothing)."""

    job: Job
    killed: tuple[Kill, ...]
    problem: str
    losses: tuple[Mapping[str, Any], ...]
    seconds: float


def jobs(cases: Sequence[str], ranks: int, seed: int) -> Iterator[Job]:
    """Jobs without end: 1 to `ranks` - 1 kills each, of workers and of rank 0, some at the same moment."""
    draw = random.Random(seed)
    while True:
        for case in cases:
            victims = draw.sample(range(ranks), min(draw.choice([1, 2, 2, 3, ranks - 1]), ranks - 1))
            kills = [_kill(draw, rank) for rank in victims]
            if draw.random() < 0.4:  # all in one moment
                first = kills[0]
                kills = [Kill(kill.rank, first.round, kill.stage, kill.delay_s) for kill in kills]
            yield Job(case, ranks, tuple(kills))


def _kill(draw: random.Random, rank: int) -> Kill:
    stage = draw.choice(SERVER_STAGES if rank == 0 else WORKER_STAGES)
    # Every second round is tested and saved.
    number = draw.randrange(2, ROUNDS + 1, 2) if stage in ("evaluation", "saving") else draw.randint(1, ROUNDS)
    return Kill(rank, number, stage, draw.choice([0.0, draw.uniform(0, 0.005), draw.uniform(0, 0.05)]))


def quiet(case: str, folder: Path) -> Path:
    """The run directory of an undisturbed run, made by one process if it is not there."""
    run_dir = folder / f"quiet-{case}"
    if not run_dir.exists():
        words = [sys.executable, "-m", "fedmpi.main", *COMMON, *CASES[case], "--run-dir", str(run_dir)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    return run_dir


def run(job: Job, folder: Path, number: int, expected: Path) -> Outcome:
    """Starts the job, waits for its end and compares it with the run in `expected`."""
    run_dir, markers = folder / f"job-{number}", folder / f"killed-{number}"
    markers.mkdir()
    kills = json.dumps([[kill.rank, kill.round, kill.stage, kill.delay_s] for kill in job.kills])
    program = [sys.executable, str(Path(__file__).with_name("killed_rank.py")), str(markers), kills]
    launcher = [_mpirun(), "--with-ft", "ulfm", "-n", str(job.ranks)]
    words = [*launcher, *program, *COMMON, *CASES[job.case], "--run-dir", str(run_dir)]
    started = time.monotonic()
    with open(folder / f"job-{number}.log", "wb") as log:
        files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        # What a killed mpirun leaves among temporary files would end a later one with the same process number.
        own = environment(job.ranks) | {"TMPDIR": str(folder)}
        process = subprocess.Popen(words, **files, env=own, start_new_session=True)
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            code = -1
    seconds = time.monotonic() - started
    killed = tuple(kill for kill in job.kills if (markers / str(kill.rank)).exists())
    losses = [loss for start in manifest.read_starts(RunDir(run_dir)) for loss in start.get("losses", [])]
    problem = _problem(code, run_dir, expected) or _untold(killed, losses)
    return Outcome(job, killed, problem, tuple(losses), seconds)


def _mpirun() -> str:
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else "mpirun"


def _problem(code: int, run_dir: Path, expected: Path) -> str:
    if code:
        return "hangs" if code < 0 else f"exit code {code}"
    differences = [name for name, value in results(run_dir).items() if value != results(expected)[name]]
    return f"differs: {', '.join(differences)}" if differences else ""


def _untold(killed: Sequence[Kill], losses: Sequence[Mapping[str, Any]]) -> str:
    """Each loss must be on record; only one of the last round may come when nobody looks any more."""
    told = {loss["rank"] for loss in losses}
    missing = [str(kill.rank) for kill in killed if kill.rank not in told and kill.round < ROUNDS]
    return f"no record of the loss of rank {', '.join(missing)}" if missing else ""


def results(run_dir: Path) -> dict[str, Any]:
    """What of a finished run must not depend on ranks or interruptions."""
    warnings: list[str] = []
    snapshot = checkpoint.load_newest_intact(RunDir(run_dir), warnings.append)
    records = read_records(RunDir(run_dir))
    return {
        "server state": snapshot and digest_of(snapshot.server),
        "client memories": snapshot and dict(snapshot.clients),
        "records": [{key: value for key, value in record.items() if key not in NOT_RESULTS} for record in records],
        "progress": snapshot and {key: value for key, value in snapshot.progress.items() if key != "seconds"},
        "warnings": warnings,
        "report": (run_dir / "report").is_dir(),
    }


def print_kills(outcome: Outcome, number: int) -> None:
    """A line for each kill that came to pass."""
    verdict = outcome.problem or "same bits"
    recovery_s = {loss["rank"]: loss["recovery_s"] for loss in outcome.losses}
    for kill in outcome.killed:
        took = f"{recovery_s[kill.rank]:9.3f}" if kill.rank in recovery_s else "        -"
        moment = f"{kill.stage} + {kill.delay_s * 1000:.0f} ms"
        what = f"{outcome.job.case:14} {kill.rank:4} {kill.round:5}  {moment:26}"
        print(f"{number:3}  {what} {took}  {verdict}", flush=True)


def print_summary(outcomes: Sequence[Outcome]) -> None:
    """How many kills there were in each stage, and what recovery took."""
    by_stage: dict[str, list[float]] = {}
    for outcome in outcomes:
        recovery_s = {loss["rank"]: loss["recovery_s"] for loss in outcome.losses}
        for kill in outcome.killed:
            what = f"{'rank 0' if kill.rank == 0 else 'worker'}, {kill.stage}"
            by_stage.setdefault(what, []).append(recovery_s.get(kill.rank, float("nan")))
    print(f"\n{'killed':28} kills   median s   longest s")
    for what, seconds in sorted(by_stage.items()):
        known = [second for second in seconds if second == second]
        numbers = f"{statistics.median(known):10.3f} {max(known):11.3f}" if known else f"{'-':>10} {'-':>11}"
        print(f"{what:28} {len(seconds):5} {numbers}")
    bad = sum(bool(outcome.problem) for outcome in outcomes)
    total = sum(len(outcome.killed) for outcome in outcomes)
    good = len(outcomes) - bad
    print(f"{total} kills in {len(outcomes)} jobs; {good} jobs ended with the bits of the quiet run, {bad} not")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("jobs/kill_ranks.py", __doc__)
    parser.add_argument("--kills", type=number(int, 1), default=40, help="stop when so many ranks were killed")
    parser.add_argument("--ranks", type=number(int, 2), default=5, help="of each job")
    parser.add_argument("--seed", type=number(int, 0), default=1)
    parser.add_argument("--methods", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--folder", type=Path, help="a new one, to keep run directories and logs in")
    options = parser.parse_args(argv)
    if options.folder and options.folder.exists() and any(options.folder.iterdir()):
        raise RunDirError(str(options.folder), "is not empty; take a new --folder")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    try:
        options = _arguments(argv)
        folder = options.folder or Path(tempfile.mkdtemp(prefix="fedmpi-kills-"))
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
    except UserError as error:
        print(error.text(), file=sys.stderr, flush=True)
        return error.exit_code
    print(f"job  {'method':14} {'rank':4} {'round':5}  {'stage + delay':26} {'seconds':>9}  outcome")
    outcomes: list[Outcome] = []
    for nth, job in enumerate(jobs(options.methods, options.ranks, options.seed)):
        outcomes.append(run(job, folder, nth, quiet(job.case, folder)))
        print_kills(outcomes[-1], nth)
        if outcomes[-1].problem and not outcomes[-1].killed:
            print(f"{nth:3}  {job.case}: {outcomes[-1].problem}, and nobody was killed")
        if sum(len(outcome.killed) for outcome in outcomes) >= options.kills:
            break
    print_summary(outcomes)
    failed = any(outcome.problem for outcome in outcomes)
    if options.folder is None and not failed:
        shutil.rmtree(folder)
    elif failed:
        print(f"logs and run directories: {folder}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

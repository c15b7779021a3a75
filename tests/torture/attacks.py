"""Runs that lose ranks, are killed as a whole, or have a rank stopped; and whether they come to a quiet run's bytes.

The library of `kill_ranks.py`. An attack is aimed at a moment of a run (`killed_rank.py` waits for it there), so the
same seed attacks the same moments.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedmpi.config import yaml_text
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.launch import environment, files_in, launcher

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

SERVER_STAGES = ("communication", "aggregation", "svd", "evaluation", "saving")
WORKER_STAGES = ("communication", "local_training", "submodel_creation", "aggregation", "evaluation")

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
    """The run directory of an undisturbed run with all its checkpoints, made by one process if it is not there."""
    run_dir = folder / f"quiet-{case}"
    if not run_dir.exists():
        kept = ("output.checkpoint_every=1", f"output.keep_checkpoints={ROUNDS}")
        words = [sys.executable, "-m", "fedmpi.main", *COMMON, *CASES[case], *kept, "--run-dir", str(run_dir)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
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
    program = [sys.executable, str(Path(__file__).with_name("killed_rank.py")), str(markers), told]
    options = ["--with-ft", "ulfm"] if job.kind != "job" and ranks > 1 else []
    words = launcher(ranks)
    words = [*words[:1], *options, *words[1:], *program, *COMMON, *CASES[job.case], "--run-dir", str(run_dir)]
    words += [f"mpi.round_timeout_s={job.timeout_s:g}"] if job.timeout_s else []
    words += ["--resume"] if run_dir.exists() else []
    limit_s = LIMIT_S + sum(3 * kill.stop_s for kill in kills)
    with open(run_dir.with_name(f"{run_dir.name}.log"), "ab") as log:
        own = environment(ranks) | files_in(run_dir.parent)
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own, start_new_session=True
        )
    until = time.monotonic() + limit_s
    while process.poll() is None:
        is_time = job.kind == "job" and any((markers / str(kill.rank)).exists() for kill in kills)
        if is_time or time.monotonic() > until:
            kill_all(process)
            return 0 if is_time else -1
        time.sleep(0.002)
    return process.returncode


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a launcher and all its ranks at (nearly) the same moment, and waits for their end."""
    family = [process.pid]
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    process.wait()
    while any(_is_running(pid) for pid in family):
        time.sleep(0.005)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


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

"""Kills and stops ranks of running jobs at seeded random moments; each run must come to the bits of a quiet one.

    PYTHONPATH=tests python -m nightly.kill ranks|job|stops|combinations [--count 40] [--seed 1] [--ranks 5]
        [--folder DIR]

`ranks`: a job under ULFM loses one rank or more, workers and rank 0, one after the other or at once, in every stage.
`job`: mpirun and all ranks get SIGKILL at once, one to three times, and the run is resumed on other numbers of ranks.
`stops`: a rank gets SIGSTOP for 5 to 60 s, with no limit to a round, or one above or below that time; where the others
give up, the run is resumed. `combinations`: as `ranks` and `job` in turn, of random settings of all methods
(`combinations.yaml`), with another exchange and another interval of checkpoints at each start.

Prints a line a run; the exit code is 1 if one did not end with exit code 0 and the same bits. A seed attacks the same
moments: each rank attacks itself when it enters a stage.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from launched import LIMIT_S, environment, kill_all, started

from fedmpi import methods, registry
from fedmpi.check.bits import difference
from fedmpi.check.small import finished
from fedmpi.clock import Clock, Stage
from fedmpi.config import yaml_text
from fedmpi.config.load import load
from fedmpi.config.yaml_text import flow
from fedmpi.errors import UserError
from fedmpi.main import main as fedmpi_main
from fedmpi.mpi.launch import claimed
from fedmpi.mpi.mpirun import start_words
from fedmpi.running import start
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir

HERE = Path(__file__).parent
HANGS = -1
"""Stands for the exit code of a start that was ended after `LIMIT_S`."""
SERVER_STAGES: tuple[Stage, ...] = ("communication", "aggregation", "svd", "evaluation", "saving")
WORKER_STAGES: tuple[Stage, ...] = ("communication", "local_training", "submodel_creation", "aggregation", "evaluation")
MODES = ("ranks", "job", "stops")

_FILE = yaml_text.parse((HERE / "cases.yaml").read_text()).value
_DRAWN = yaml_text.parse((HERE / "combinations.yaml").read_text()).value
CASES: Mapping[str, tuple[str, ...]] = {
    name: (*_FILE["common"].split(), "rounds=8", *_FILE["nets"][net].split(), *words.split())
    for name, (net, words) in _FILE["cases"].items()
}


@dataclass(frozen=True)
class Attack:
    """A rank is killed `delay_s` after it first enters `stage` of round `round`, or stopped for `stop_s`."""

    rank: int
    round: int
    stage: str
    delay_s: float
    stop_s: float = 0.0


@dataclass(frozen=True)
class Leg:
    """One start of a run: its number of ranks, the attacks on it, and settings that change no bit."""

    ranks: int
    attacks: tuple[Attack, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A run: the words of its command, and its starts.

    `kills_all` says that an attack hits mpirun and all ranks, and not one rank of a job that outlives it.
    """

    name: str
    words: tuple[str, ...]
    starts: tuple[Leg, ...]
    kills_all: bool = False

    @property
    def stop_s(self) -> float:
        return max((attack.stop_s for one in self.starts for attack in one.attacks), default=0.0)


@dataclass
class Outcome:
    """Holds what became of a run: the attacks that came to pass, exit codes of its starts, and its losses on record."""

    attacks: list[Attack] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    losses: list[Mapping[str, Any]] = field(default_factory=list)
    problem: str = ""
    """Says what is wrong; '' for nothing."""


def case(name: str, *starts: Leg, kills_all: bool = False) -> Job:
    return Job(name, CASES[name], starts, kills_all)


def rounds_of(words: Sequence[str]) -> int:
    return max(int(word.removeprefix("rounds=")) for word in words if word.startswith("rounds="))


# Drawing.


def drawn(draw: random.Random, mode: str, name: str, words: tuple[str, ...], ranks: int) -> Job:
    """Draws the attacks on one run."""
    rounds = rounds_of(words)
    if mode == "ranks":
        victims = draw.sample(range(ranks), min(draw.choice([1, 2, 2, 3, ranks - 1]), ranks - 1))
        kills = [_attack(draw, rank, rounds) for rank in victims]
        if draw.random() < 0.4:  # all in one moment
            kills = [replace(kill, round=kills[0].round, stage=kills[0].stage) for kill in kills]
        return Job(name, words, (Leg(ranks, tuple(kills)),))
    if mode == "job":
        starts = []
        size = ranks
        for _ in range(draw.choice([1, 2, 2, 3])):
            starts.append(Leg(size, (_attack(draw, draw.randrange(size), rounds),)))
            size = draw.choice([other for other in (1, 2, 3, ranks) if other != size])
        return Job(name, words, (*starts, Leg(size)), kills_all=True)
    stop_s = round(draw.choice([5, 10, 20, draw.uniform(5, 60)]), 1)
    # No limit to a round, one far above that time, or one below it.
    timeout_s = draw.choice([0.0, 100.0, max(1.0, round(stop_s / 12, 1)), max(1.0, round(stop_s / 3, 1))])
    stop = replace(_attack(draw, draw.randrange(ranks), rounds), stop_s=stop_s)
    return Job(name, words, (Leg(ranks, (stop,), (f"mpi.round_timeout_s={timeout_s:g}",)),))


def _attack(draw: random.Random, rank: int, rounds: int) -> Attack:
    stage = draw.choice(SERVER_STAGES if rank == 0 else WORKER_STAGES)
    # The cases test and save every second round.
    numbers = range(2, rounds + 1, 2) if stage in ("evaluation", "saving") else range(1, rounds + 1)
    return Attack(rank, draw.choice(numbers), stage, draw.choice([0.0, draw.uniform(0, 0.005), draw.uniform(0, 0.05)]))


def combinations(folder: Path, ranks: int, seed: int) -> Iterator[Job]:
    """Yields jobs of random settings without end, the methods in turn; what fedmpi refuses is drawn again."""
    _write_data(folder)
    for number, method in zip(count(), cycle(registry.BUILT_IN["method"])):
        draw = random.Random(f"{seed} {number}")
        words = _accepted(draw, method, folder)
        job = drawn(draw, MODES[number % 2], f"{seed}-{number}-{method}", words, draw.randint(2, ranks))
        starts = [replace(one, settings=tuple(_one_each(draw, _DRAWN["start"]))) for one in job.starts]
        yield replace(job, starts=tuple(starts))


def _accepted(draw: random.Random, method: str, folder: Path) -> tuple[str, ...]:
    while True:
        words = tuple(_settings(draw, method, folder))
        with contextlib.suppress(UserError):
            config = load(None, words)
            methods.create(start.method_context(config, config.data.info()))
            return words


_COUNTS = {"num_train": 96, "num_test": 30, "num_groups": 6}


def _settings(draw: random.Random, method: str, folder: Path) -> Iterator[str]:
    kind, words = draw.choice(_DRAWN["data"])
    yield from words.replace("FOLDER", str(folder)).split()
    yield from draw.choice(_DRAWN["models"][kind.partition(" ")[0]]).split()
    partitions = {"image": "any", "image many": "many"}.get(kind) or draw.choice(("groups", "groups", "any"))
    yield from draw.choice(_DRAWN["partitions"][partitions]).split()
    count = _COUNTS["num_groups"] if partitions == "groups" else draw.randint(3, 10)
    yield from (f"clients.count={count}", f"clients.per_round={draw.randint(1, min(count, 6))}")
    yield f"method.name={method}"
    for key, values in _DRAWN["options"][method].items():
        if draw.random() < 0.6:
            yield f"method.{key}={flow(draw.choice(values))}"
    yield from _one_each(draw, _DRAWN["settings"])
    for lines in _DRAWN["together"].values():
        yield from draw.choice(lines).split()
    yield f"seed={draw.randrange(1000)}"
    yield from ("output.progress=plain", "output.tensorboard=false", "output.report=false")


def _one_each(draw: random.Random, values_of: Mapping[str, Sequence[object]]) -> Iterator[str]:
    yield from (f"{key}={flow(draw.choice(values))}" for key, values in values_of.items())


def _write_data(folder: Path) -> None:
    """Writes files with examples of six groups: rows of numbers, and texts; the same ones each time."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    count = _COUNTS["num_train"] + _COUNTS["num_test"]
    _write_grouped(folder / "rows.npz", draw, draw.normal(size=(count, 561)), 6)
    _write_grouped(folder / "texts.npz", draw, draw.integers(0, 65, (count, 8)), 65)


def _write_grouped(path: Path, draw: np.random.Generator, x: np.ndarray, num_classes: int) -> None:
    """All classes occur in the training part."""
    y = draw.permuted(np.arange(_COUNTS["num_train"]) % num_classes)
    y = np.concatenate([y, draw.integers(0, num_classes, _COUNTS["num_test"])])
    groups = np.arange(len(x)) % _COUNTS["num_groups"]
    cut = _COUNTS["num_train"]
    arrays = {"train_x": x[:cut], "train_y": y[:cut], "groups": groups[:cut]}
    np.savez(path, **arrays, test_x=x[cut:], test_y=y[cut:], test_groups=groups[cut:])


# Running.


def quiet(job: Job, folder: Path) -> Path | None:
    """Returns the directory of an undisturbed run, made in this process if it is not there; None if training failed."""
    run_dir = folder / f"quiet-{job.name}"
    if run_dir.exists():
        return run_dir
    log = folder / f"quiet-{job.name}.log"
    with open(log, "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        code = fedmpi_main([*job.words, "--run-dir", str(run_dir)])
    return run_dir if code == 0 else None


def run(job: Job, folder: Path, number: int, expected: Path) -> Outcome:
    """Starts the job, again after an attack that ends it, waits for its end and compares it with `expected`."""
    run_dir, outcome = folder / f"job-{number}", Outcome()
    for nth, one in enumerate(job.starts):
        markers = folder / f"attacked-{number}-{nth}"
        outcome.codes.append(_run_once(job, one, markers, run_dir))
        outcome.attacks += [attack for attack in one.attacks if (markers / str(attack.rank)).exists()]
    is_done = RunDir(run_dir).checkpoint_path(rounds_of(job.words)).exists()
    if job.stop_s and HANGS not in outcome.codes and not is_done:
        # The others have given up. Under ULFM mpirun's exit code can be 0.
        outcome.codes.append(_run_once(job, Leg(2), folder / f"attacked-{number}-again", run_dir))
    starts = manifest.read_starts(RunDir(run_dir))
    outcome.losses = [loss for one in starts for loss in one.get("losses", [])]
    outcome.problem = _problem(job, outcome, run_dir, expected)
    return outcome


def _run_once(job: Job, one: Leg, markers: Path, run_dir: Path) -> int:
    """Returns the exit code of one start: 0 where an attack killed all of it, `HANGS` for a hang, which is ended."""
    markers.mkdir()
    # What the rank does to itself: 0 it kills itself, null it only says that the moment has come, else it stops.
    attacks = [
        (attack.rank, attack.round, attack.stage, attack.delay_s, None if job.kills_all else attack.stop_s)
        for attack in one.attacks
    ]
    mpirun = start_words(one.ranks)
    if one.ranks > 1 and not job.kills_all:
        mpirun = [mpirun[0], "--with-ft", "ulfm", *mpirun[1:]]
    words = [*mpirun, sys.executable, "-m", "nightly.kill", "rank", str(markers), json.dumps(attacks)]
    words += [*job.words, *one.settings, "--run-dir", str(run_dir), *(["--resume"] if run_dir.exists() else [])]
    own = environment() | {"PYTHONPATH": f"{HERE.parent}:{HERE.parents[1]}"}
    process = started(words, run_dir.with_name(f"{run_dir.name}.log"), folder=HERE, env=own)
    until = time.monotonic() + LIMIT_S + 3 * job.stop_s
    while process.poll() is None:
        is_time = job.kills_all and any(markers.iterdir())
        if is_time or time.monotonic() > until:
            kill_all(process)
            return 0 if is_time else HANGS
        time.sleep(0.002)
    return process.returncode


def _problem(job: Job, outcome: Outcome, run_dir: Path, expected: Path) -> str:
    if HANGS in outcome.codes:
        return "hangs"
    if outcome.codes[-1]:
        return f"exit code {outcome.codes[-1]}"
    if not job.kills_all and not job.stop_s:
        # Only the loss of a rank in the last round may come when nobody looks any more.
        missing = {attack.rank for attack in outcome.attacks if attack.round < rounds_of(job.words)}
        if missing := missing - {loss["rank"] for loss in outcome.losses}:
            return f"no record of the loss of ranks {sorted(missing)}"
    if job.kills_all and (left := [path.name for path in run_dir.rglob("*.tmp")]):
        return f"temporary files are left: {left}"
    return difference(finished(run_dir), finished(expected))


# A rank of such a job.


def _attack_myself(marker: Path, delay_s: float, stop_s: float | None) -> None:
    time.sleep(delay_s)
    if stop_s:  # a stopped process cannot continue by itself
        subprocess.Popen(["sh", "-c", f"sleep {stop_s}; kill -CONT {os.getpid()}"])
    marker.touch()
    if stop_s is not None:
        os.kill(os.getpid(), signal.SIGSTOP if stop_s else signal.SIGKILL)


def rank_main(markers: str, attacks: str, *words: str) -> int:
    """Runs `python -m fedmpi.main` on this rank, which attacks itself in the stages of `attacks` (JSON)."""
    rank, enter = claimed()[0], Clock.stage
    moments = {(stage, number): how for attacked, number, stage, *how in json.loads(attacks) if attacked == rank}

    @contextmanager
    def entered(
        clock: Clock, stage: Stage, round_number: int | None = None, client: int | None = None
    ) -> Iterator[SimpleNamespace]:
        with enter(clock, stage, round_number, client) as timer:
            if how := moments.pop((stage, round_number), None):
                threading.Thread(target=_attack_myself, args=(Path(markers) / str(rank), *how), daemon=True).start()
            yield timer

    with mock.patch.object(Clock, "stage", entered):
        return fedmpi_main(list(words))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("nightly.kill", description=__doc__)
    parser.add_argument("mode", choices=[*MODES, "combinations"])
    parser.add_argument("--count", type=int, default=40, help="runs")
    parser.add_argument("--ranks", type=int, default=5, help="of each job, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keeps run directories and logs")
    options = parser.parse_args(argv)
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="fedmpi-kill-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(options.seed)
    jobs = (drawn(draw, options.mode, name, CASES[name], options.ranks) for name in cycle(CASES))
    if options.mode == "combinations":
        jobs = combinations(folder / "data", options.ranks, options.seed)
    failed = 0
    for number, job in enumerate(islice(jobs, options.count)):
        expected = quiet(job, folder)
        if expected is None:
            print(f"{number:4}  {job.name}: training fails", flush=True)
            continue
        outcome = run(job, folder, number, expected)
        failed += bool(outcome.problem)
        moments = "; ".join(f"rank {one.rank} in {one.stage} of round {one.round}" for one in outcome.attacks)
        print(f"{number:4}  {job.name:24} {outcome.problem or 'same bits':10} {moments}", flush=True)
        if outcome.problem:
            print(f"      {job}", flush=True)
    print(f"{failed} of {options.count} runs went wrong")
    if failed == 0 and options.folder is None:
        shutil.rmtree(folder)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(rank_main(*sys.argv[2:]) if sys.argv[1:2] == ["rank"] else main(sys.argv[1:]))

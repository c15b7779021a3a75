"""Runs as the programs of `jobs/` plan and make them: each a command of its own, with a folder and a log.

A run that is finished is not made again, one that was interrupted continues, and one that fails ends no other.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.disk.plain import open_in_place, open_to_read
from fedmpi.errors import INTERRUPTED, MISTAKE, TO_CONTINUE, RunDirError, UserError, counted, reason
from fedmpi.mpi.mpirun import environment
from fedmpi.report.records import rounds_done
from fedmpi.report.terminal import wrapped
from fedmpi.running import stopping
from fedmpi.store.files import writing
from fedmpi.store.manifest import read_starts
from fedmpi.store.units import took
from fedmpi.studies.runs import Run

# mpirun passes the signal on and waits for its ranks.
_PATIENCE_S = 20.0
_LOG_END_BYTES = 2**20
# A run is looked at after so many seconds, again after the next, and in the end every time after the last.
_LOOKS_AFTER_S = (10.0, 20.0, 30.0, 60.0)


@dataclass(frozen=True)
class Job:
    """A run to be made: its config file, the overrides on it, and both together."""

    run: Run
    path: Path
    overrides: tuple[str, ...]
    config: Config


def scaled(config: Config, scale: float) -> list[str]:
    """Overrides that multiply what counts rounds, none of it below 1; what happened in the run still does if it can."""
    if scale == 1:
        return []

    def times(count: int) -> int:
        return max(1, round(scale * count))

    rounds = times(config.rounds)
    overrides = [f"rounds={rounds}"]
    if milestones := scaled_milestones(config, scale):
        overrides.append(f"train.schedule.milestones=[{','.join(map(str, milestones))}]")
    if scale < 1:  # a longer run needs no coarser look
        overrides.append(f"evaluation.every={times(config.evaluation.every)}")
    for key, value in config.method:
        if key.endswith(("_round", "_rounds")) and isinstance(value, int) and value > 0:
            latest = max(1, rounds - 1) if value < config.rounds else times(value)
            overrides.append(f"method.{key}={min(times(value), latest)}")
    return overrides


def scaled_milestones(config: Config, scale: float) -> list[int]:
    """Those of `train.schedule`: different ones stay different and, as long as there are enough rounds, before the last
    round, so that each still changes the learning rate; where there are not, the last ones come too late."""
    milestones = getattr(config.train.schedule, "milestones", ())
    rounds = max(1, round(scale * config.rounds))
    effective = sorted({milestone for milestone in milestones if milestone < config.rounds})
    latest = max(rounds - 1, len(effective))
    places: dict[int, int] = {}
    for number, milestone in enumerate(effective, 1):
        after_last = max(places.values(), default=0) + 1
        places[milestone] = min(max(round(scale * milestone), after_last), latest - (len(effective) - number))
    return [places.get(milestone, max(rounds, round(scale * milestone))) for milestone in milestones]


def planned(run: Run, path: Path, overrides: Sequence[str]) -> Job:
    """The job that makes a run of a config. Raises `UserError`, also if the folder has a run of another config."""
    config = load(path, overrides, observed=True)
    if run.has_begun() and (found := differences(config, run.said)):
        text = f"was run with another config: {'; '.join(found)}; take another --out"
        raise RunDirError(str(run.folder.path), text)
    return Job(run, path, tuple(overrides), config)


def differences(asked: Config, saved: Mapping[str, Any]) -> list[str]:
    """A line for each; that a run may be longer than it was meant to be is no difference to fedmpi, but is here."""
    found = asked.diff(saved)
    if saved["rounds"] != asked.rounds and not any(line.startswith("rounds:") for line in found):
        found.append(f"rounds: run has {saved['rounds']}, you ask {asked.rounds}")
    return found


def make(jobs: Sequence[Job], starter: Sequence[str], ranks: int) -> Iterator[Job]:
    """Makes what is left of each run in turn, and prints that it begins, how far it is and how it went; `starter` is
    the launcher of so many ranks.
    """
    for place, job in enumerate(jobs, 1):
        name = f"[{place}/{len(jobs)}] {job.run.name} seed {job.run.seed}"

        def say(line: str, name: str = name) -> None:
            print("\n".join(wrapped(f"{name}: {line}")), flush=True)

        say(_make(job, starter, environment(ranks), say))
        yield job


def _make(job: Job, starter: Sequence[str], environment: dict[str, str], say: Callable[[str], None]) -> str:
    """Makes what is left of a run; how that went, in words."""
    if job.run.is_finished():
        return "finished before"
    begun = Begun.now(job, starter)
    say(f"{'resumed' if begun.is_resumed else 'started'}, log {begun.log}")
    last = _num_done(job.run)

    def look() -> None:
        nonlocal last
        if (done := _num_done(job.run)) > last:
            last = done
            say(f"{counted(done, 'round')} of {job.config.rounds:,}, {took(time.monotonic() - begun.started_s)}")

    return begun.how(launch(begun.command, begun.log, environment, look))


def _num_done(run: Run) -> int:
    """Rounds on record; 0, too, where the records cannot be read now."""
    with contextlib.suppress(UserError):
        return rounds_done(run.records)
    return 0


@dataclass(frozen=True)
class Begun:
    """A run that is being made: its command, and what its log and the clock had before."""

    job: Job
    command: Sequence[str]
    log: Path
    log_bytes: int
    is_resumed: bool
    started_s: float

    @classmethod
    def now(cls, job: Job, starter: Sequence[str]) -> Begun:
        folder = job.run.folder
        log = folder.path.with_name(f"{folder.path.name}.log")
        program = [sys.executable, "-m", "fedmpi.main", str(job.path), *job.overrides, "--run-dir", str(folder.path)]
        is_resumed, length = folder.holds_run(), log.stat().st_size if log.exists() else 0
        command = [*starter, *program, *["--resume"] * is_resumed]
        return cls(job, command, log, length, is_resumed, time.monotonic())

    def how(self, code: int) -> str:
        """How the run went that has ended with this exit code, in words."""
        took = f"{'resumed, ' * self.is_resumed}{time.monotonic() - self.started_s:.0f} s"
        if code == 0:
            return f"finished ({took})"
        if code == TO_CONTINUE:
            return f"stopped, to continue ({took})"
        holder = _holder(self.log, self.log_bytes)
        return f"left alone: {holder}" if holder else f"failed with exit code {code} ({took}); see {self.log}"


def _holder(log: Path, start: int) -> str | None:
    """What the run's lock says of the process that makes the same run, if the log has them since `start`."""
    if not log.exists():  # the launcher itself could not be started
        return None
    with open_to_read(log) as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - _LOG_END_BYTES))
        text = file.read(_LOG_END_BYTES)
    found = re.search(rb"is (in use by (?:another process|pid \d+ on \S+));", text)
    return found[1].decode(errors="replace") if found else None


def stoppable(action: Callable[[], int], shown: str = "--collect prints what there is") -> int:
    """The exit code of an action that makes runs; after Ctrl-C, or SIGTERM, it says how they continue."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return action()
    except KeyboardInterrupt:
        print(f"stopped; the same command continues from here, {shown}", file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def is_stopped(job: Job) -> bool:
    """Whether the run was asked to stop, or had no time left: the program that started it must stop, too."""
    starts = read_starts(job.run.folder)
    return bool(starts) and "stopped" in starts[-1]


def launch(
    command: Sequence[str], log: Path, environment: dict[str, str], look: Callable[[], None] = lambda: None
) -> int:
    """The exit code of a command that adds its output to `log`; it ends with us, and stops when we are asked to. `look`
    is called now and then while it runs.
    """
    heard: list[int] = []
    under_way: list[subprocess.Popen[bytes]] = []

    def hear(number: int, frame: Any = None) -> None:
        heard.append(number)
        for process in under_way:
            process.send_signal(number)

    before = signal.signal(stopping.SIGNAL, hear)
    try:
        process = start(command, log, environment)
        under_way.append(process)
        try:
            for number in heard[:1]:  # it came before there was a process
                process.send_signal(number)
            return _waited(process, look)
        finally:
            end(process)
    finally:
        signal.signal(stopping.SIGNAL, before)


def _waited(process: subprocess.Popen[bytes], look: Callable[[], None]) -> int:
    """The exit code of the process, once it has ended; in between `look`, first often and then every minute."""
    for pause_s in chain(_LOOKS_AFTER_S, repeat(_LOOKS_AFTER_S[-1])):
        try:
            return process.wait(pause_s)
        except subprocess.TimeoutExpired:
            look()
    raise AssertionError("without end")


def start(command: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that adds its output to `log`. Raises `UserError`."""
    with writing(log):
        descriptor = open_in_place(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with open(descriptor, "ab") as output:
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        except OSError as error:
            raise UserError(command[0], f"cannot be started: {reason(error)}") from None


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends it if it still runs: what it saved stays."""
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def refuse_failure(code: int, command: Sequence[str]) -> None:
    """Ends this program with exit code 2 where a program that it has started has ended with that, because the mistake
    is said already. Raises `CalledProcessError` for any other code but 0."""
    if code == MISTAKE:
        raise SystemExit(code)
    if code:
        raise subprocess.CalledProcessError(code, command)

"""Makes runs on this machine: each is a command of its own, with a folder and a log beside it.

A run that is finished is not made again, one that was interrupted continues, and one that fails ends no other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.errors import FAILED, INTERRUPTED, MISTAKE, TO_CONTINUE, RunDirError, UserError, counted, reason
from fedmpi.mpi.mpirun import environment, start_words
from fedmpi.report.records import read_records, rounds_done
from fedmpi.report.terminal import wrapped
from fedmpi.results.run import Run
from fedmpi.running.stopping import SIGNAL
from fedmpi.store.files import make_folder, writing
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import took

_POLL_S = 0.1
_SAY_EVERY_S = 30.0
# mpirun passes SIGTERM on to its ranks and waits for them.
_END_WITHIN_S = 20.0
_LOG_END_BYTES = 2**16


@dataclass(frozen=True)
class Job:
    """A run to make. `name` is what progress lines call it; `config` is that of `path` with the overrides."""

    name: str
    folder: RunDir
    path: Path
    overrides: tuple[str, ...]
    config: Config

    def run(self) -> Run:
        """Returns the run as its folder shows it now."""
        return Run(self.folder.path)

    def num_done(self) -> int:
        """Returns how many rounds are on record; 0, too, where the records cannot be read now."""
        try:
            return rounds_done(read_records(self.folder))
        except UserError:
            return 0


def plan_job(name: str, folder: RunDir, path: Path, overrides: Sequence[str]) -> Job:
    """Reads the config of a run. Raises `UserError`, also where the folder has a run of another config."""
    job = Job(name, folder, path, tuple(overrides), load(path, overrides, observed=True))
    run = job.run()
    if run.has_begun() and (found := differences(job.config, run.values)):
        text = f"was run with another config: {'; '.join(found)}; take another --out"
        raise RunDirError(str(folder.path), text)
    return job


def differences(config: Config, saved: Mapping[str, Any]) -> list[str]:
    """Returns a line for each difference. Another number of rounds is one here, although a run may be extended."""
    found = config.diff(saved)
    if saved["rounds"] != config.rounds and not any(line.startswith("rounds:") for line in found):
        found.append(f"rounds: run has {saved['rounds']}, you ask {config.rounds}")
    return found


def make(
    jobs: Sequence[Job],
    *,
    ranks: int = 1,
    at_once: int = 1,
    launcher: str | None = None,
    before_start: Callable[[Job], None] = lambda job: None,
) -> int:
    """Makes what is left of the runs, `at_once` at a time, each on so many ranks. Prints a line for each event.

    Returns the exit code: 0 if all runs are finished, 1 if some failed, 75 if runs were asked to stop or had no time
    left, 130 after Ctrl-C or SIGTERM. No started process outlives this call. Raises `UserError`.
    """
    left = [job for job in jobs if not job.run().is_finished()]
    if len(left) < len(jobs):
        print(f"{counted(len(jobs) - len(left), 'run')} of {len(jobs)} finished before", flush=True)
    makers = _Makers(start_words(ranks, launcher), environment(ranks, at_once), before_start)
    handlers = {SIGNAL: makers.pass_on, signal.SIGINT: makers.interrupt, signal.SIGTERM: makers.interrupt}
    handlers_before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        return makers.make_all(left, at_once)
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)


class _Makers:
    """The processes that make runs now."""

    def __init__(self, words: Sequence[str], environ: dict[str, str], before_start: Callable[[Job], None]) -> None:
        self._start_words = words
        self._environ = environ
        self._before_start = before_start
        self._under_way: list[_Maker] = []
        self._is_stopping = False
        self._is_interrupted = False
        self._has_failures = False

    def make_all(self, jobs: Sequence[Job], at_once: int) -> int:
        """Returns the exit code. All processes end before it returns or raises."""
        waiting = deque(enumerate(jobs, 1))
        try:
            while not self._is_interrupted and (self._under_way or (waiting and not self._is_stopping)):
                if waiting and not self._is_stopping and len(self._under_way) < at_once:
                    number, job = waiting.popleft()
                    self._start(job, f"[{number}/{len(jobs)}] {job.name}")
                elif not self._collect_ended():
                    time.sleep(_POLL_S)
        finally:
            for maker in self._under_way:
                maker.process.terminate()
            for maker in self._under_way:
                maker.end()
        if self._is_interrupted:
            print("stopped; the same command continues from here", file=sys.stderr, flush=True)
            return INTERRUPTED
        if self._is_stopping:
            return TO_CONTINUE
        return FAILED if self._has_failures else 0

    def pass_on(self, number: int, frame: Any) -> None:
        """Asks all runs to stop after their round. It is the handler of that signal."""
        self._is_stopping = True
        for maker in self._under_way:
            maker.process.send_signal(number)

    def interrupt(self, number: int, frame: Any) -> None:
        """Ends all runs soon. An exception could come before a new process is in the list, or while all are ended."""
        self._is_interrupted = True

    def _start(self, job: Job, title: str) -> None:
        self._before_start(job)
        self._under_way.append(_Maker(job, title, self._start_words, self._environ))
        if self._is_stopping:  # the signal came before the process was in the list
            self._under_way[-1].process.send_signal(SIGNAL)

    def _collect_ended(self) -> bool:
        """Returns whether a process has ended. The others say how far they are."""
        ended = [maker for maker in self._under_way if maker.process.poll() is not None]
        for maker in ended:
            self._under_way.remove(maker)
            match maker.say_end():
                case "stopped":
                    self._is_stopping = True
                case "failed":
                    self._has_failures = True
        for maker in self._under_way:
            maker.say_progress()
        return bool(ended)


class _Maker:
    """The process that makes one run."""

    def __init__(self, job: Job, title: str, words: Sequence[str], environ: dict[str, str]) -> None:
        self.job = job
        self._title = title
        self._log = job.folder.path.with_name(f"{job.folder.path.name}.log")
        self._started_s = time.monotonic()
        self._said_s = self._started_s
        self._said_rounds = job.num_done()
        program = [sys.executable, "-m", "fedmpi.main", str(job.path), *job.overrides]
        command = [*words, *program, "--run-dir", str(job.folder.path)]
        is_resumed = job.folder.holds_run()
        if is_resumed:
            command.append("--resume")
        make_folder(self._log.parent)
        with writing(self._log), open(self._log, "ab") as output:
            self._log_start = output.tell()
            self.process = _started(command, output.fileno(), environ)
        self._say(f"{'resumed' if is_resumed else 'started'}, log {self._log}")

    def say_progress(self) -> None:
        """Prints how many rounds are done, now and then, where there are more than before."""
        now_s = time.monotonic()
        if now_s < self._said_s + _SAY_EVERY_S:
            return
        self._said_s = now_s
        done = self.job.num_done()
        if done > self._said_rounds:
            self._said_rounds = done
            self._say(f"{counted(done, 'round')} of {self.job.config.rounds:,}, {took(now_s - self._started_s)}")

    def say_end(self) -> Literal["finished", "stopped", "failed"]:
        """Prints and returns how the run stands after the end of the process."""
        code = self.process.returncode
        seconds = f"{time.monotonic() - self._started_s:.0f} s"
        if self.job.run().is_finished():
            self._say(f"finished ({seconds})")
            return "finished"
        if code in (TO_CONTINUE, -SIGNAL):
            self._say(f"stopped, to continue ({seconds})")
            return "stopped"
        mistake = f": {self._last_message()}" if code == MISTAKE else ""
        self._say(f"failed with exit code {code} ({seconds}){mistake}; see {self._log}")
        return "failed"

    def end(self) -> None:
        """Waits for the end of the process, and kills it if that takes too long. What it has saved stays."""
        try:
            self.process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _last_message(self) -> str:
        """Returns the last line that this process wrote into its log, with the indented lines that belong to it."""
        with open(self._log, "rb") as file:
            file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - _LOG_END_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        first = max((place for place, line in enumerate(lines) if line[:1].strip()), default=0)
        return " ".join(line.strip() for line in lines[first:])

    def _say(self, text: str) -> None:
        print(*wrapped(f"{self._title}: {text}"), sep="\n", flush=True)


def _started(command: Sequence[str], output: int, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Starts a process. Raises `UserError`."""
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environ)
    except OSError as error:
        raise UserError(command[0], f"cannot be started: {reason(error)}") from None

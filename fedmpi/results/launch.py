"""Makes runs on this machine: each is a command of its own, with a folder and a log beside it.

A run that is finished is not made again, one that was interrupted continues, and one that fails ends no other.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedmpi.config import yaml_text
from fedmpi.config.schema import Config
from fedmpi.errors import FAILED, INTERRUPTED, MISTAKE, TO_CONTINUE, RunDirError, UserError, counted, reason
from fedmpi.mpi.mpirun import environment, start_words
from fedmpi.report.terminal import wrapped
from fedmpi.results.run import Run
from fedmpi.running.stopping import SIGNAL
from fedmpi.store.files import make_folder, write_text, writing
from fedmpi.store.run_dir import RunDir

_POLL_S = 0.1
# mpirun passes SIGTERM on to its ranks and waits for them.
_END_WITHIN_S = 20.0
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True)
class Job:
    """A run to make. `name` is what progress lines call it."""

    name: str
    folder: RunDir
    config: Config

    def run(self) -> Run:
        """Returns the run as its folder shows it now."""
        return Run(self.folder.path)

    def refuse_other(self) -> None:
        """Raises RunDirError where the folder has a run of another config."""
        run = self.run()
        if run.has_begun() and (found := differences(self.config, run.values)):
            text = f"was run with another config: {'; '.join(found)}; take another --out"
            raise RunDirError(str(self.folder.path), text)


def write_config(job: Job) -> None:
    """Writes the config that the run takes: the user may edit the file it comes from while the run waits."""
    make_folder(job.folder.path)
    write_text(job.folder.submitted_config_path, yaml_text.dump(job.config.to_dict()))


def differences(config: Config, saved: Mapping[str, Any]) -> list[str]:
    """Returns a line for each difference. Other `rounds` and another `stop` are some here, although a run may be
    extended."""
    found = config.diff(saved)
    if saved["rounds"] != config.rounds and not any(line.startswith("rounds:") for line in found):
        found.append(f"rounds: run has {saved['rounds']}, you ask {config.rounds}")
    for key, value in config.stop:
        if (had := saved.get("stop", {}).get(key, 0)) != value:
            found.append(f"stop.{key}: run has {had:g}, you ask {value:g}")
    return found


def make(jobs: Sequence[Job], *, ranks: int = 1, at_once: int = 1, launcher: str | None = None) -> int:
    """Makes what is left of the runs, `at_once` at a time, each on so many ranks. Prints a line for each event.

    Returns the exit code: 0 if all runs are finished, 1 if some failed, 75 if runs were asked to stop or had no time
    left, 130 after Ctrl-C or SIGTERM. No started process outlives this call. Raises `UserError`.
    """
    left = [job for job in jobs if not job.run().is_finished]
    if len(left) < len(jobs):
        print(f"{counted(len(jobs) - len(left), 'run')} of {len(jobs)} finished before", flush=True)
    start = partial(_Process, start_words(ranks, launcher), environment(ranks, at_once))
    signals: set[int] = set()
    numbers = (SIGNAL, *_INTERRUPTS)
    handlers = [signal.signal(number, lambda number, frame: signals.add(number)) for number in numbers]
    try:
        return _make_all(left, start, at_once, signals)
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def _make_all(jobs: Sequence[Job], start: Callable[[Job, str], _Process], at_once: int, signals: set[int]) -> int:
    """Returns the exit code. All processes end before it returns or raises."""
    waiting = deque(enumerate(jobs, 1))
    processes: list[_Process] = []
    codes = {0}
    try:
        while processes or (waiting and TO_CONTINUE not in codes):
            if signals & _INTERRUPTS:
                print("stopped; the same command continues from here", file=sys.stderr, flush=True)
                return INTERRUPTED
            if SIGNAL in signals:  # all runs stop after their round
                signals.discard(SIGNAL)
                codes.add(TO_CONTINUE)
                for process in processes:
                    process.popen.send_signal(SIGNAL)
            if waiting and len(processes) < at_once and TO_CONTINUE not in codes:
                number, job = waiting.popleft()
                processes.append(start(job, f"[{number}/{len(jobs)}] {job.name}"))
                continue
            for process in [one for one in processes if one.popen.poll() is not None]:
                processes.remove(process)
                codes.add(process.report_end())
            time.sleep(_POLL_S)
    finally:
        _end(processes)
    return max(codes)  # to continue is more than to have failed


class _Process:
    """The process that makes one run."""

    def __init__(self, words: Sequence[str], environ: dict[str, str], job: Job, title: str) -> None:
        self._job = job
        self._title = title
        self._log = job.folder.path.with_name(f"{job.folder.path.name}.log")
        self._started_s = time.monotonic()
        write_config(job)
        program = [sys.executable, "-m", "fedmpi.main", str(job.folder.submitted_config_path)]
        command = [*words, *program, "--run-dir", str(job.folder.path), "--resume"]
        with writing(self._log), open(self._log, "ab") as output:
            self.popen = _started(command, output.fileno(), environ)
        self._print(f"started, log {self._log}")

    def report_end(self) -> int:
        """Prints how the run stands after the end of the process. Returns 0 if it is finished, else 75 or 1."""
        code = self.popen.returncode
        seconds = f"{time.monotonic() - self._started_s:.0f} s"
        if self._job.run().is_finished:
            self._print(f"finished ({seconds})")
            return 0
        if code in (TO_CONTINUE, -SIGNAL):
            self._print(f"stopped, to continue ({seconds})")
            return TO_CONTINUE
        mistake = f": {self._last_message()}" if code == MISTAKE else ""
        self._print(f"failed with exit code {code} ({seconds}){mistake}; see {self._log}")
        return FAILED

    def _last_message(self) -> str:
        """Returns the last line of the log, with the indented lines that belong to it."""
        lines = self._log.read_text(errors="replace").splitlines()
        first = max((place for place, line in enumerate(lines) if line[:1].strip()), default=0)
        return " ".join(line.strip() for line in lines[first:])

    def _print(self, text: str) -> None:
        print(*wrapped(f"{self._title}: {text}"), sep="\n", flush=True)


def _started(command: Sequence[str], output: int, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Starts a process. Raises `UserError`."""
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environ)
    except OSError as error:
        raise UserError(command[0], f"cannot be started: {reason(error)}") from None


def _end(processes: Sequence[_Process]) -> None:
    """Ends all processes, and kills one that takes too long. What a run has saved stays."""
    for process in processes:
        process.popen.terminate()
    for process in processes:
        try:
            process.popen.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()

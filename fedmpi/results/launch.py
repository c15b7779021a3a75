"""Makes runs: on this machine, each as a command of its own with a folder and a log beside it, or as a Slurm job.

A run that is finished is not made again, one that was interrupted continues, and one that fails ends no other. The
Slurm job runs in the folder in which the command was called, with the same interpreter, so it finds the same code.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmpi.command.given import check_ranks
from fedmpi.config import yaml_text
from fedmpi.config.schema import Config
from fedmpi.errors import FAILED, INTERRUPTED, MISTAKE, TO_CONTINUE, RunDirError, UserError, counted, one_line, reason
from fedmpi.mpi.mpirun import environment, launcher_words, mpirun_beside_python, start_words
from fedmpi.report.terminal import wrapped
from fedmpi.results.run import FINISHED, RUNNING, Run
from fedmpi.running.stopping import SIGNAL
from fedmpi.store.files import make_folder, write_text, writing
from fedmpi.store.run_dir import RunDir

_POLL_S = 0.1
_END_WITHIN_S = 20.0  # mpirun passes SIGTERM on to its ranks and waits for them
_ENDING = (signal.SIGINT, signal.SIGTERM, SIGNAL)


@dataclass(frozen=True)
class Job:
    """A run to make."""

    folder: RunDir
    config: Config

    def run(self) -> Run:
        """Returns the run as its folder shows it now."""
        return Run(self.folder.path)

    def refuse_other(self) -> None:
        """Raises RunDirError where the folder has a run of another config."""
        run = self.run()
        if run.dir.has_config() and (found := differences(self.config, run.values)):
            text = f"was run with another config: {'; '.join(found)}; take another --out"
            raise RunDirError(str(self.folder.path), text)


def write_config(job: Job) -> None:
    """Writes the config that the run takes: the user may edit the file it comes from while the run waits."""
    make_folder(job.folder.path)
    write_text(job.folder.submitted_config_path, yaml_text.dump(job.config.to_dict()))


def differences(config: Config, saved: Mapping[str, Any]) -> list[str]:
    """Returns a line for each difference, also of `rounds` and `stop`, with which a run may be extended."""
    found = config.diff(saved)
    if saved["rounds"] != config.rounds and not any(line.startswith("rounds:") for line in found):
        found.append(f"rounds: run has {saved['rounds']}, you ask {config.rounds}")
    for key, value in config.stop:
        if (had := saved.get("stop", {}).get(key, 0)) != value:
            found.append(f"stop.{key}: run has {had:g}, you ask {value:g}")
    return found


def make(jobs: Sequence[Job], *, ranks: int = 1, at_once: int = 1, launcher: str | None = None) -> int:
    """Makes what is left of the runs, `at_once` at a time, each on so many ranks. Prints a line for each event.

    Returns the exit code: 0 if all runs are finished, 1 if some failed, 75 if runs had no time left, 130 after Ctrl-C
    or a signal. No started process outlives this call. Raises `UserError`.
    """
    left = [job for job in jobs if not job.run().is_finished]
    if len(left) < len(jobs):
        print(f"{counted(len(jobs) - len(left), 'run')} of {len(jobs)} finished before", flush=True)
    waiting = deque(enumerate(left, 1))
    words = start_words(ranks, launcher)
    environ = environment(ranks, at_once)
    codes = {0}
    with _supervised() as (processes, signals):
        while (processes or waiting) and not signals:
            if waiting and len(processes) < at_once:
                number, job = waiting.popleft()
                processes.append(_Process(words, environ, job, f"[{number}/{len(left)}] {job.folder.path.name}"))
                continue
            time.sleep(_POLL_S)
            for process in [one for one in processes if one.popen.poll() is not None]:
                processes.remove(process)
                codes.add(process.report_end())
            if TO_CONTINUE in codes:  # there is no time for another
                waiting.clear()
        if signals:
            print("stopped; the same command continues from here", file=sys.stderr, flush=True)
            return INTERRUPTED
    return max(codes)  # to continue is more than to have failed


@contextmanager
def _supervised() -> Iterator[tuple[list[_Process], list[int]]]:
    """Yields the processes, which all end at last, and the signals to this process, which end nothing by themselves."""
    processes: list[_Process] = []
    signals: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: signals.append(number)) for number in _ENDING}
    try:
        yield processes, signals
    finally:
        for process in processes:
            process.popen.terminate()
        for process in processes:
            try:
                process.popen.wait(_END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Process:
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
        if code == TO_CONTINUE:
            self._print(f"stopped, to continue ({seconds})")
            return TO_CONTINUE
        mistake = ""
        if code == MISTAKE:  # the log ends with a line that says it, and indented lines that belong to that one
            *_, last = re.split(r"^(?=\S)", self._log.read_text(errors="replace"), flags=re.MULTILINE)
            mistake = f": {' '.join(last.split())}"
        self._print(f"failed with exit code {code} ({seconds}){mistake}; see {self._log}")
        return FAILED

    def _print(self, text: str) -> None:
        print(*wrapped(f"{self._title}: {text}"), sep="\n", flush=True)


def _started(command: Sequence[str], output: int, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environ)
    except OSError as error:
        raise UserError(command[0], f"cannot be started: {reason(error)}") from None


_PACKAGE = Path(__file__).resolve().parents[1]
# An installed package has `slurm/` within it.
_FILES = next(
    folder for folder in (_PACKAGE.with_name("slurm"), _PACKAGE / "slurm") if (folder / "job.sbatch").exists()
)
_DEFAULTS = {"cpus-per-task": "1", "time": "24:00:00", "signal": "B:USR1@120", "requeue": "", "open-mode": "append"}
_FORMS = {
    "array": (r"%[1-9]\d*", "array=%M, for M runs at the same time"),
    # Only this form reaches the batch shell alone, which forwards it to the ranks (slurm/life_cycle.sh).
    "signal": (r"B:USR1@[1-9]\d*", "signal=B:USR1@SECONDS"),
    "ntasks": ("(?!)", "--ranks in its place"),
}
"""The pattern that an option's value must match, and its description in a message."""


def sbatch_option(text: str) -> str:
    """Checks a word behind `--slurm`: `key=value` or `key`. It is an argparse type."""
    option = re.fullmatch(r"(?:--)?([a-z]+(?:-[a-z0-9]+)*)(?:=(.+))?", text)
    if option is None:
        raise argparse.ArgumentTypeError(f"expected a long option of sbatch, as partition=gpu, got {text!r}")
    key, value = option.groups(default="")
    form, words = _FORMS.get(key, (".*", ""))
    if not re.fullmatch(form, value):
        raise argparse.ArgumentTypeError(f"expected {words}, got {text!r}")
    return text.removeprefix("--")


def write_slurm_job(
    jobs: Sequence[Job], folder: Path, *, ranks: int, launcher: str | None, options: Sequence[str]
) -> None:
    """Writes FOLDER/job.sbatch, an array with a task for each run that is neither finished nor under way; the template
    is slurm/job.sbatch. Raises `UserError`, before anything is written.
    """
    left = {number: job for number, job in enumerate(jobs, 1) if job.run().state not in (FINISHED, RUNNING)}
    for job in left.values():
        check_ranks(job.config, ranks)
    print(f"{len(left)} of {counted(len(jobs), 'run')} left; others are finished or running", flush=True)
    if not left:
        return
    parts = {
        "job": [*_sbatch_lines(folder, ranks, left, options), *_start_lines(ranks, launcher)],
        "runs": [*_run_lines(jobs)],
    }
    # In the template a part stands between `# >>> PART` and `# <<<`.
    template = (_FILES / "job.sbatch").read_text()
    text = re.sub(r"# >>> (\w+)\n.*?# <<<$", lambda part: "\n".join(parts[part[1]]), template, flags=re.DOTALL | re.M)
    for job in left.values():
        write_config(job)
    file = make_folder(folder) / "job.sbatch"
    write_text(file, text)
    print(f"written: {file}; look at it, then: sbatch {shlex.quote(str(file))}", flush=True)


def _sbatch_lines(folder: Path, ranks: int, tasks: Iterable[int], given: Sequence[str]) -> Iterator[str]:
    """Yields the `#SBATCH` lines: the defaults, and the user's options in place of them or behind them."""
    own = dict(option.partition("=")[::2] for option in given)
    own["array"] = ",".join(map(str, tasks)) + own.get("array", "")
    log = str(folder).replace("%", "%%") + "/slurm-%A_%a.log"
    options = {"job-name": folder.name, "array": "", "ntasks": str(ranks), **_DEFAULTS, "output": log, **own}
    if "no-requeue" in own:
        del options["requeue"]
    for key, value in options.items():
        # To sbatch blanks need quotes, and a backslash takes the next character as it is.
        quoted = re.sub(r'(["\\])', r"\\\1", value)
        text = f'"{quoted}"' if re.search(r"[\s#\"'\\]", value) else value
        yield f"#SBATCH --{key}" + (f"={text}" if text else "")


def _run_lines(jobs: Sequence[Job]) -> Iterator[str]:
    yield "case ${SLURM_ARRAY_TASK_ID:-1} in"
    for number, job in enumerate(jobs, 1):
        config = shlex.quote(str(job.folder.submitted_config_path.absolute()))
        yield f"  {number}) run=({config}) run_dir={shlex.quote(str(job.folder.path.absolute()))} ;;"
    yield "esac"


def _start_lines(ranks: int, launcher: str | None) -> list[str]:
    """Returns lines of bash that say where the job runs, with which interpreter, and what starts its ranks."""
    if launcher is None:
        # Variables that sbatch passes on may put all ranks on the first node; --map-by puts them on all.
        start = [mpirun_beside_python() or "mpirun", "-n", str(ranks), "--map-by", "slot"]
    else:
        start = launcher_words(ranks, launcher)
    return [
        f"# Written by: {one_line(f'{sys.argv[0]} {shlex.join(sys.argv[1:])}')}",
        f"cd {shlex.quote(os.getcwd())}",
        f"source {shlex.quote(str(_FILES / 'life_cycle.sh'))}",
        f"export PYTHONPATH={shlex.quote(os.environ.get('PYTHONPATH', ''))}",
        f"python={shlex.quote(sys.executable)}",
        f"start=({shlex.join(start)})",
    ]

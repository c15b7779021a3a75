"""Writes the Slurm job of runs, and hands it to sbatch: `fedmpi grid FILE --slurm KEY=VALUE ... [--submit]`.

FOLDER/job.sbatch     the job, an array with a task for each run if there are several; slurm/job.sbatch is its template
RUN/submitted-*.yaml  the config that the job takes: the user may edit the file it comes from while the job waits
RUN/submitted.json    the number of the job that is to make the run, and which of these configs it takes

The job runs in the folder in which the command was called, with the same interpreter, so that it finds the same code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fedmpi.command.given import check_ranks
from fedmpi.config import yaml_text
from fedmpi.config.load import read_tree
from fedmpi.errors import ConfigError, UserError, counted, one_line
from fedmpi.mpi.mpirun import launcher_words, mpirun_beside_python
from fedmpi.report.ending import RUNNING
from fedmpi.results.launch import Job, differences
from fedmpi.store.files import make_folder, write_text

_SQUEUE_TIMEOUT_S = 30.0
_PACKAGE = Path(__file__).resolve().parents[1]
# An installed package has `slurm/` within it.
_FILES = next(
    folder for folder in (_PACKAGE.with_name("slurm"), _PACKAGE / "slurm") if (folder / "job.sbatch").exists()
)
_NOT_FOR_USERS = {
    "ntasks": "set by --ranks",
    "wrap": "set by --launcher",
    "test-only": "for sbatch itself; without --submit nothing is submitted",
    "wait": "not for a program that continues",
}
# Only this form reaches the batch shell alone, which tells the ranks (slurm/life_cycle.sh).
_EARLY_SIGNAL = re.compile(r"B:(?:USR1|SIGUSR1|10)@([1-9]\d*)")
_DEFAULTS = {"cpus-per-task": "1", "time": "24:00:00", "signal": "B:USR1@120", "requeue": "", "open-mode": "append"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--slurm` and `--submit`."""
    what = "make the runs by a Slurm job with these long options of sbatch (array=%%4: four runs at a time)"
    parser.add_argument("--slurm", nargs="*", type=sbatch_option, metavar="KEY=VALUE", help=what)
    parser.add_argument("--submit", action="store_true", help="hand the job to sbatch, too")


def sbatch_option(text: str) -> str:
    """Checks a word behind `--slurm`: `key=value` or `key`. It is an argparse type."""
    key, equals, value = text.removeprefix("--").partition("=")
    if not re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", key):
        raise argparse.ArgumentTypeError(
            f"expected a long option of sbatch, as partition=gpu or exclusive, got {text!r}"
        )
    if key in ("rounds", "seed"):
        raise argparse.ArgumentTypeError(f"{key} is a setting of fedmpi; settings stand before --slurm")
    if equals and not value:
        raise argparse.ArgumentTypeError(f"{key} has no value; write {key}=VALUE, or {key} alone")
    if key in _NOT_FOR_USERS:
        raise argparse.ArgumentTypeError(f"{key} is {_NOT_FOR_USERS[key]}")
    if key == "array" and not re.fullmatch(r"%[1-9]\d*", value):
        raise argparse.ArgumentTypeError(f"expected array=%M, for M runs at the same time, got {text!r}")
    if key == "signal" and not _EARLY_SIGNAL.fullmatch(value):
        raise argparse.ArgumentTypeError(
            f"signal must be B:USR1@SECONDS, which slurm/life_cycle.sh forwards, got {value!r}"
        )
    return f"{key}{equals}{value}"


def hand_over(
    jobs: Sequence[Job],
    *,
    name: str,
    folder: Path,
    ranks: int,
    launcher: str | None,
    options: Sequence[str],
    submit: bool,
    command: Sequence[str],
) -> int:
    """Writes the job of the runs that are neither finished nor under way; hands it to sbatch where `submit` says so.

    Returns the exit code. Raises `UserError`, before anything is written for a mistake in the request.
    """
    given = dict(option.partition("=")[::2] for option in options)
    _check_time(_DEFAULTS | given)
    left = {number: job for number, job in enumerate(jobs, 1) if not job.run().is_finished()}
    queue = _queued_jobs(submit) if left else set()
    under_way = {number: job for number, job in left.items() if job.run().jobs() & queue or job.run().state == RUNNING}
    for number, job in under_way.items():
        _check_waiting_config(job)
        del left[number]
    for job in left.values():
        check_ranks(job.config, ranks)
    num_finished = len(jobs) - len(left) - len(under_way)
    where = f"{num_finished} finished, {len(under_way)} running or in the queue, {len(left)} left"
    print(f"{counted(len(jobs), 'run')}: {where}", flush=True)
    if not left:
        return 0
    array = _ranges(list(left)) + given.pop("array", "") if len(jobs) > 1 else ""
    text = job_text(
        _sbatch_lines(name, ranks, folder, array, given), _run_lines(jobs), _start_lines(ranks, launcher), command
    )
    file = folder / "job.sbatch"
    for job in left.values():
        make_folder(job.folder.path)
        write_text(_config_path(job), _config_text(job))
    make_folder(folder)
    write_text(file, text)
    print(f"written: {file}", flush=True)
    if submit:
        return _submit(file, {number if len(jobs) > 1 else None: job for number, job in left.items()})
    print("look at it, then give the same command with --submit", flush=True)
    return 0


def job_text(
    sbatch_lines: Sequence[str], run_lines: Sequence[str], start_lines: Sequence[str], command: Sequence[str]
) -> str:
    """Returns the template with these lines in place of its own."""
    text = (_FILES / "job.sbatch").read_text()
    written = f"# Written by: {one_line(shlex.join(command))}"
    for part, lines in (("job", [written, *sbatch_lines, *start_lines]), ("runs", run_lines)):
        before, _, rest = text.partition(f"# >>> {part}\n")
        _, _, after = rest.partition("# <<<\n")
        assert after, f"the template has no part {part}"
        text = before + "\n".join(lines) + "\n" + after
    return text


def _sbatch_lines(name: str, ranks: int, folder: Path, array: str, given: Mapping[str, str]) -> list[str]:
    """Returns the `#SBATCH` lines: the defaults, and the user's options in place of them or behind them."""
    log = str(folder).replace("%", "%%") + f"/slurm-{'%A_%a' if array else '%j'}.log"
    options = {"job-name": name, "array": array, "ntasks": str(ranks), **_DEFAULTS, "output": log, **given}
    if not array:
        del options["array"]
    if "no-requeue" in given:
        del options["requeue"]
    if broken := [value for value in options.values() if not value.isprintable()]:
        raise ConfigError("--slurm", f"an option must be one line of printable characters, got {broken[0]!r}")
    return [f"#SBATCH --{key}" + (f"={_quoted(value)}" if value else "") for key, value in options.items()]


def _quoted(value: str) -> str:
    """Returns the text as sbatch reads its lines: blanks need quotes, a backslash takes the next character as it is."""
    if not re.search(r"[\s#\"'\\]", value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _run_lines(jobs: Sequence[Job]) -> list[str]:
    """Returns the config and the run directory of each task, as bash reads them."""
    runs = [
        f"run=({shlex.quote(str(_config_path(job)))}) run_dir={shlex.quote(str(job.folder.path.absolute()))}"
        for job in jobs
    ]
    if len(runs) == 1:
        return runs
    return ["case $SLURM_ARRAY_TASK_ID in", *(f"  {number}) {run} ;;" for number, run in enumerate(runs, 1)), "esac"]


def _start_lines(ranks: int, launcher: str | None) -> list[str]:
    """Returns lines of bash that say where the job runs, with which interpreter, and what starts its ranks."""
    if launcher is None:
        # Variables that sbatch passes on may put all ranks on the first node; --map-by puts them on all.
        start = [mpirun_beside_python() or "mpirun", "-n", str(ranks), "--map-by", "slot"]
    else:
        start = launcher_words(ranks, launcher)
    path = os.environ.get("PYTHONPATH", "")
    return [
        f"cd {shlex.quote(os.getcwd())}",
        f"source {shlex.quote(str(_FILES / 'life_cycle.sh'))}",
        *([f"export PYTHONPATH={shlex.quote(path)}"] if path else []),
        f"python={shlex.quote(sys.executable)}",
        f"start=({shlex.join(start)})",
    ]


def _config_path(job: Job) -> Path:
    """Returns another path for another config: the file of a job that waits is never written again."""
    digest = hashlib.sha256(_config_text(job).encode()).hexdigest()[:8]
    return job.folder.submitted_config_path(digest).absolute()


def _config_text(job: Job) -> str:
    return yaml_text.dump(job.config.to_dict())


def _ranges(numbers: Sequence[int]) -> str:
    """Writes 1, 2, 3, 7 as `1-3,7`."""
    texts = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        texts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(texts)


def _check_time(options: Mapping[str, str]) -> None:
    """Raises `ConfigError` where the early signal would come before the job has begun."""
    found = _EARLY_SIGNAL.fullmatch(options["signal"])
    early_s = int(found[1]) if found else 0
    for key in ("time", "time-min"):
        limit_s = _seconds(options.get(key, ""))
        if 0 < limit_s <= early_s:
            what = f"{key}={options[key]} is not longer than the {early_s} s before its end at which the signal comes"
            raise ConfigError("--slurm", f"{what}; give it more, or signal=B:USR1@SECONDS less")


def _seconds(time: str) -> int:
    """Reads a limit as sbatch does: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S; 0 for anything else."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", time):
        return 0
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not dash and len(parts) < 3:
        parts.insert(0, 0)
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _queued_jobs(submit: bool) -> set[str]:
    """Returns all jobs that run or wait, each task of an array by itself; none where there is no Slurm.

    Where Slurm does not answer, raises `UserError` if a job is to be submitted, else says so.
    """
    if shutil.which("squeue") is None:
        return set()
    # What a user likes to see of the queue by default is not all of it.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SQUEUE_")}
    command = ["squeue", "--noheader", "--array", "--format", "%i"]
    try:
        done = _call(command, env=environ, timeout=_SQUEUE_TIMEOUT_S)
        problem = "" if done.returncode == 0 else _reason(done)
    except subprocess.TimeoutExpired:
        problem = f"no answer in {_SQUEUE_TIMEOUT_S:g} s"
    if problem and submit:
        raise UserError("squeue", f"{problem}; so which runs wait in the queue is not known; try again later")
    if problem:
        print(f"squeue: {problem}; runs that wait in the queue are not left out", file=sys.stderr, flush=True)
        return set()
    # An interactive job in which this command is called makes no run by itself.
    return set(done.stdout.split()) - {os.environ.get("SLURM_JOB_ID", "")}


def _check_waiting_config(job: Job) -> None:
    """Raises `UserError` if the job in the queue has another config than the request."""
    path = job.folder.path / str(job.run().submission.get("config"))
    if path.is_file() and (found := differences(job.config, read_tree(path, str(path)).values)):
        problem = f"waits in the queue with another config: {'; '.join(found)}"
        raise UserError(str(job.folder.path), f"{problem}; cancel its job first, or take another --out")


def _submit(file: Path, waiting: Mapping[int | None, Job]) -> int:
    """Hands the file to sbatch. Leaves in the folder of each run (by task; None for the only one) its job's number."""
    if shutil.which("sbatch") is None:
        raise UserError("--submit", "no sbatch in PATH; give this command where Slurm is")
    num_starts = {task: len(job.run().starts) for task, job in waiting.items()}  # the job may start at once
    done = _call(["sbatch", "--parsable", str(file)])
    if done.returncode != 0:
        highest = max(task or 0 for task in waiting)
        hint = f"; the highest task is {highest}, `scontrol show config` has MaxArraySize" if highest else ""
        raise UserError("--submit", f"sbatch refuses {file}: {_reason(done)}{hint}")
    sys.stderr.write(done.stderr)
    number = done.stdout.strip().partition(";")[0]
    if not number.isdecimal():
        raise UserError("--submit", f"sbatch answers {done.stdout!r} instead of a job's number")
    runs = next(iter(waiting.values())).folder.path.parent
    print(f"submitted job {number}; how it goes: fedmpi show {shlex.quote(str(runs))}", flush=True)
    submitted = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    for task, job in waiting.items():
        note = {
            "job": number if task is None else f"{number}_{task}",
            "starts": num_starts[task],
            "submitted": submitted,
            "config": _config_path(job).name,
        }
        write_text(job.folder.submission_path, json.dumps(note) + "\n")
    return 0


def _call(command: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **more)


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the last line of what a command of Slurm says, without `squeue: error:`."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return one_line(re.sub(r"^\w+: ((error|fatal): )?", "", lines[-1])) if lines else f"exit code {done.returncode}"

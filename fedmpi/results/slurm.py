"""Writes the Slurm job of runs, and hands it to sbatch: `fedmpi grid FILE --slurm KEY=VALUE ... [--submit]`.

FOLDER/job.sbatch   the job, an array with a task for each run; slurm/job.sbatch is its template
RUN/submitted.json  the number of the job that is to make the run

The job runs in the folder in which the command was called, with the same interpreter, so that it finds the same code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedmpi.command.given import check_ranks
from fedmpi.config.load import read_tree
from fedmpi.errors import UserError, counted, one_line
from fedmpi.mpi.mpirun import launcher_words, mpirun_beside_python
from fedmpi.report.ending import RUNNING
from fedmpi.results.launch import Job, differences, write_config
from fedmpi.store.files import make_folder, write_text

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
    "wrap": ("(?!)", "--launcher in its place"),
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


def hand_over(
    jobs: Sequence[Job], folder: Path, *, ranks: int, launcher: str | None, options: Sequence[str], submit: bool
) -> None:
    """Writes the job of the runs that are neither finished nor under way; hands it to sbatch where `submit` says so.

    Raises `UserError`, before anything is written for a mistake in the request.
    """
    queue = _queued_jobs()
    left: dict[int, Job] = {}
    for number, job in enumerate(jobs, 1):
        run = job.run()
        if run.state == RUNNING or run.jobs() & queue:
            _check_waiting_config(job)
        elif not run.is_finished:
            check_ranks(job.config, ranks)
            left[number] = job
    print(f"{len(left)} of {counted(len(jobs), 'run')} left; others are finished, running or in the queue", flush=True)
    if not left:
        return
    head = [*_sbatch_lines(folder, ranks, left, options), *_start_lines(ranks, launcher)]
    for job in left.values():
        write_config(job)
    file = make_folder(folder) / "job.sbatch"
    write_text(file, _filled(_filled((_FILES / "job.sbatch").read_text(), "job", head), "runs", _run_lines(jobs)))
    print(f"written: {file}", flush=True)
    if submit:
        _submit(file, left)
    else:
        print("look at it, then give the same command with --submit", flush=True)


def _filled(template: str, part: str, lines: Sequence[str]) -> str:
    """Puts lines in place of the template's own, which stand between `# >>> PART` and `# <<<`."""
    before, _, rest = template.partition(f"# >>> {part}\n")
    _, _, after = rest.partition("# <<<\n")
    return before + "\n".join(lines) + "\n" + after


def _sbatch_lines(folder: Path, ranks: int, tasks: Iterable[int], given: Sequence[str]) -> list[str]:
    """Returns the `#SBATCH` lines: the defaults, and the user's options in place of them or behind them."""
    own = dict(option.partition("=")[::2] for option in given)
    own["array"] = ",".join(map(str, tasks)) + own.get("array", "")
    log = str(folder).replace("%", "%%") + "/slurm-%A_%a.log"
    options = {"job-name": folder.name, "array": "", "ntasks": str(ranks), **_DEFAULTS, "output": log, **own}
    if "no-requeue" in own:
        del options["requeue"]
    return [f"#SBATCH --{key}" + (f"={_quoted(value)}" if value else "") for key, value in options.items()]


def _quoted(value: str) -> str:
    """Returns the text as sbatch reads its lines: blanks need quotes, a backslash takes the next character as it is."""
    if not re.search(r"[\s#\"'\\]", value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _run_lines(jobs: Sequence[Job]) -> list[str]:
    """Returns the config and the run directory of each task, as bash reads them."""
    lines = ["case ${SLURM_ARRAY_TASK_ID:-1} in"]
    for number, job in enumerate(jobs, 1):
        config = shlex.quote(str(job.folder.submitted_config_path.absolute()))
        lines.append(f"  {number}) run=({config}) run_dir={shlex.quote(str(job.folder.path.absolute()))} ;;")
    return [*lines, "esac"]


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


def _queued_jobs() -> set[str]:
    """Returns all jobs that run or wait, each task of an array by itself; none where there is no Slurm."""
    if shutil.which("squeue") is None:
        return set()
    jobs = _call("squeue", "--noheader", "--array", "--format", "%i").split()
    # An interactive job in which this command is called makes no run by itself.
    return set(jobs) - {os.environ.get("SLURM_JOB_ID", "")}


def _check_waiting_config(job: Job) -> None:
    """Raises `UserError` if the job in the queue has another config than the request."""
    path = job.folder.submitted_config_path
    if path.is_file() and (found := differences(job.config, read_tree(path, str(path)).plain())):
        problem = f"waits in the queue with another config: {'; '.join(found)}"
        raise UserError(str(job.folder.path), f"{problem}; cancel its job first, or take another --out")


def _submit(file: Path, tasks: Mapping[int, Job]) -> None:
    """Hands the file to sbatch. Leaves in the folder of each run the number of its task."""
    if shutil.which("sbatch") is None:
        raise UserError("--submit", "no sbatch in PATH; give this command where Slurm is")
    num_starts = {task: len(job.run().starts) for task, job in tasks.items()}  # the job may start at once
    number = _call("sbatch", "--parsable", str(file)).strip().partition(";")[0]
    print(f"submitted job {number}; how it goes: fedmpi show {shlex.quote(str(file.parent))}", flush=True)
    for task, job in tasks.items():
        note = {"job": f"{number}_{task}", "starts": num_starts[task]}
        write_text(job.folder.submission_path, json.dumps(note) + "\n")


def _call(*command: str) -> str:
    """Returns what a command of Slurm prints. Raises `UserError` with the last line of its errors."""
    # The user's SQUEUE_* variables may filter the list of jobs.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SQUEUE_")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(command[0], one_line(lines[-1].strip()))
    sys.stderr.write(done.stderr)
    return done.stdout

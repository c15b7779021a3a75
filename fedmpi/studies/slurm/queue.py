"""Handing runs to Slurm: the job file, the config of each run as it is now, and no run twice.

FOLDER/job.sbatch     the file, and the logs
RUN/submitted-*.yaml  what a job makes the run of: the config may be edited while the job waits
RUN/submitted.json    which job the run waits for, and with which of these
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
from pathlib import Path
from typing import Any

from fedmpi.command.given import check_ranks
from fedmpi.config import yaml_text
from fedmpi.config.fields import DATA_PLACES
from fedmpi.config.load import read_tree
from fedmpi.errors import UserError, one_line
from fedmpi.results.run import Run
from fedmpi.store.files import make_folder, write_text
from fedmpi.store.manifest import read_starts
from fedmpi.studies.arguments import number
from fedmpi.studies.launch import Job, differences
from fedmpi.studies.slurm import job_file
from fedmpi.studies.slurm.job_file import Order

_SQUEUE_TIMEOUT_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be said about the job."""
    parser.add_argument("--array-max", type=number(int, 1), metavar="M", help="runs at the same time")
    option = job_file.sbatch_option
    parser.add_argument("--sbatch-option", action="append", default=[], type=option, metavar="KEY=VALUE")
    parser.add_argument("--submit", action="store_true", help="hand it to sbatch")
    parser.add_argument("--again", action="store_true", help="also runs that run or wait in the queue")


def hand_over(jobs: Sequence[Job], order: Order) -> int:
    """The exit code, when the job file of the runs that are neither finished nor under way is written, and submitted if
    that is wanted. Raises `UserError`, before anything is written for a mistake in what was asked for."""
    left = {place: job for place, job in enumerate(jobs, 1) if not job.run.is_finished()}
    if not left:
        print(f"all {len(jobs)} runs are finished")
        return 0
    if not order.given.again and (under_way := _under_way(left)):
        for place in under_way:
            _check_waits(left.pop(place))
        print(f"{len(under_way)} of {len(jobs)} runs run or wait in the queue, and are left out (not with --again)")
        if not left:
            return 0
    for job in left.values():
        check_ranks(job.config, order.given.ranks)
    if "\\" in str(order.folder):
        raise UserError("--out", f"Slurm takes a \\ in a log's name for its own; take another than {order.folder}")
    file = _write(jobs, left, order)
    print(f"{len(left)} of {len(jobs)} runs are left; written: {file}")
    if not order.given.submit:
        print("look at it, then the same command with --submit")
        return 0
    return _submit(file, {str(place) if len(jobs) > 1 else "": job for place, job in left.items()})


def _write(jobs: Sequence[Job], left: Mapping[int, Job], order: Order) -> Path:
    """The job file, and what its tasks begin their runs with. Raises `UserError`."""
    runs = [[str(_config_path(job)), "--run-dir", str(job.run.folder.path)] for job in jobs]
    text = job_file.sbatch(order, runs, list(left))
    texts = {_config_path(job): _config_text(job) for job in left.values()} | {order.folder / "job.sbatch": text}
    for file in texts:
        make_folder(file.parent)
    for file, content in texts.items():
        write_text(file, content)
    return order.folder / "job.sbatch"


def _config_path(job: Job) -> Path:
    """Another one for another config: the file of a job that waits is never written again."""
    return job.run.folder.submitted_config_path(hashlib.sha256(_config_text(job).encode()).hexdigest()[:8])


def _config_text(job: Job) -> str:
    """The config as text for a job that starts in another folder than this one."""
    plain = job.config.to_dict()
    for key in DATA_PLACES:
        if not (place := plain["data"].get(key, "~")).startswith("~"):
            plain["data"][key] = os.path.abspath(place)
    return yaml_text.dump(plain)


def _under_way(left: Mapping[int, Job]) -> list[int]:
    """The places of runs that run, or whose job Slurm knows; where it does not say, of those that seem to wait."""
    queue = _queue()
    states = ("running", "queued", "requeued") if queue is None else ("running",)
    folders = {place: job.run.folder for place, job in left.items()}
    return [
        place
        for place, folder in folders.items()
        if Run(folder.path).jobs() & (queue or set()) or Run(folder.path).state in states
    ]


def _queue() -> set[str] | None:
    """All jobs that run or wait, of an array each task; None where Slurm does not say."""
    if shutil.which("squeue") is None:
        return None
    command = ["squeue", "--noheader", "--array", "--format", "%i"]
    # What a user likes to see of the queue by default is not all of it.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SQUEUE_")}
    try:
        done = _run(command, env=environment, timeout=_SQUEUE_TIMEOUT_S)
        why = "" if done.returncode == 0 else _reason(done.stderr) or f"exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error.strerror) if isinstance(error, OSError) else f"no answer in {_SQUEUE_TIMEOUT_S:g} s"
    if why:
        print(f"squeue: {why}; the run directories are asked instead", file=sys.stderr, flush=True)
        return None
    return set(done.stdout.split()) - {environment.get("SLURM_JOB_ID", "")}  # an interactive job makes no run by itself


def _run(command: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **more)


def _reason(stderr: str) -> str:
    """The last line of what a command of Slurm says, without `squeue: error:`; empty if it says nothing."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return one_line(re.sub(r"^\w+: ((error|fatal): )?", "", lines[-1])) if lines else ""


def _check_waits(job: Job) -> None:
    """Raises `UserError` if another config waits there to be run than the one that is asked for now."""
    path = job.run.folder.path / str(Run(job.run.folder.path).submission.get("config"))
    if path.is_file() and (found := differences(job.config, read_tree(path, str(path)).values)):
        problem = f"waits in the queue with another config: {'; '.join(found)}"
        advice = "cancel its job first (--again, if that is done), or take another --out"
        raise UserError(str(job.run.folder.path), f"{problem}; {advice}")


def _submit(file: Path, waiting: Mapping[str, Job]) -> int:
    """Hands it over, and leaves in the folder of each run (by task; "" for the only one) which job it waits for."""
    if shutil.which("sbatch") is None:
        raise UserError("--submit", "no sbatch in PATH; run this where Slurm is")
    starts = {task: len(read_starts(job.run.folder)) for task, job in waiting.items()}  # the job may start at once
    done = _run(["sbatch", "--parsable", str(file)])
    if done.returncode != 0 and ": fatal: " in done.stderr:  # there is no Slurm to refuse anything
        raise UserError("--submit", f"Slurm does not answer: {_reason(done.stderr)}; nothing is submitted")
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        if len(waiting) > 1:
            told = f"the highest task is {list(waiting)[-1]}; scontrol show config tells the site's MaxArraySize"
            print(f"sbatch refuses {file}: {told}", file=sys.stderr, flush=True)
        return done.returncode
    number = done.stdout.strip().partition(";")[0]
    if not number.isdecimal():
        raise UserError("--submit", f"sbatch answers {done.stdout!r} instead of a job's number")
    runs = next(iter(waiting.values())).run.folder.path.parent  # of all of them
    print(f"submitted job {number}; how it goes: fedmpi show {shlex.quote(str(runs))}", flush=True)
    submitted = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    for task, job in waiting.items():
        name, config = f"{number}_{task}" if task else number, _config_path(job).name
        entry = {"job": name, "starts": starts[task], "submitted": submitted, "config": config}
        write_text(job.run.folder.submission_path, json.dumps(entry) + "\n")
    return 0

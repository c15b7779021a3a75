"""`slurm/life_cycle.sh` in bash, with commands of Slurm that only note how they were called."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

LIFE_CYCLE = Path(__file__).resolve().parents[2] / "slurm" / "life_cycle.sh"
JOB = {"SLURM_JOB_ID": "17"}
# The task that an array starts last has the array's own number.
TASK = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}


def start(folder: Path, script: str, environment: dict[str, str], scontrol: int = 0) -> subprocess.Popen[str]:
    """bash on `script` after the life cycle; Slurm's commands append themselves to `folder`/calls."""
    for name, answer in (("scontrol", f"exit {scontrol}"), ("squeue", "echo 2030-01-01T00:00:00")):
        command = folder / name
        command.write_text(f'#!/bin/sh\necho {name} "$@" >> {folder}/calls\n{answer}\n')
        command.chmod(0o755)
    words = {"PATH": f"{folder}:{os.environ['PATH']}", "TZ": "UTC", **environment}
    return subprocess.Popen(
        ["bash", "-c", f"source {LIFE_CYCLE}\n{script}"], env=words, stdout=subprocess.PIPE, text=True
    )


def ended(folder: Path, script: str, environment: dict[str, str], scontrol: int = 0) -> tuple[int, str, list[str]]:
    """Exit code, output, and what Slurm was asked to do."""
    process = start(folder, script, environment, scontrol)
    out, _ = process.communicate(timeout=30)
    calls = folder / "calls"
    return process.returncode, out, calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize(("environment", "job"), [(JOB, "17"), (TASK, "17_3")])
def test_a_job_goes_back_by_itself_alone(tmp_path: Path, environment: dict[str, str], job: str) -> None:
    """Not with all other tasks of its array; and its own end is what it asks for."""
    code, out, calls = ended(tmp_path, 'resumable sh -c "echo $SLURM_JOB_END_TIME; exit 75"', environment)
    assert (code, out) == (0, f"1893456000\nrequeued: job {job} goes on from what is saved\n")
    assert calls == [f"squeue --noheader --jobs {job} --format %e", f"scontrol requeue {job}"]


@pytest.mark.parametrize(
    ("command", "more", "scontrol", "code"),
    [("true", {}, 0, 0), ("sh -c 'exit 3'", {}, 0, 3), ("sh -c 'exit 75'", {"FEDMPI_REQUEUE": "no"}, 0, 75),
     ("sh -c 'exit 75'", {}, 1, 75), ("sh -c 'kill -9 $$'", {}, 0, 137)],
)  # fmt: skip
def test_other_ends_are_the_job_s(
    tmp_path: Path, command: str, more: dict[str, str], scontrol: int, code: int
) -> None:
    """Finished, failed, killed; a site that forbids requeueing, said or not."""
    environment = {**JOB, "SLURM_JOB_END_TIME": "1893456000", **more}
    found, _, calls = ended(tmp_path, f"resumable {command}", environment, scontrol)
    assert found == code and len(calls) == scontrol


def test_variables_that_are_not_set_are_nobody_s_mistake(tmp_path: Path) -> None:
    """As in the scripts of module and conda; a command that fails is one."""
    assert ended(tmp_path, 'echo "$_CONDA_IS_NOT_SET"; resumable true', JOB)[0] == 0
    assert ended(tmp_path, "false; resumable true", JOB)[0] == 1


@pytest.mark.parametrize("when", ["loading", "running"])
def test_a_signal_is_not_lost(tmp_path: Path, when: str) -> None:
    """USR1 while modules load, before there are ranks, and while they run."""
    rank = tmp_path / "rank"
    rank.write_text(f"trap 'exit 75' USR1; touch {tmp_path}/running; for i in $(seq 600); do sleep 0.05; done\n")
    process = start(tmp_path, f"touch {tmp_path}/loading; sleep 0.5; resumable bash {rank}", JOB)
    while not (tmp_path / when).exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0 and "requeued: job 17 goes on" in out


@pytest.mark.parametrize(
    ("report", "signals", "code"), [("new", False, 0), ("old", False, 1), ("none", False, 1), ("old", True, 75)]
)
def test_zero_is_not_believed_where_ranks_may_die(tmp_path: Path, report: str, signals: bool, code: int) -> None:
    """With `--with-ft`, mpirun ends with 0 even if all ranks were killed: by a signal that came early, or one by one."""
    summary = tmp_path / "run dir" / "report" / "summary.json"
    summary.parent.mkdir(parents=True)
    if report == "old":
        summary.touch()
        os.utime(summary, (0, 0))
    launcher = tmp_path / "launcher"
    write = f"touch '{summary}'" if report == "new" else "true"
    launcher.write_text(f"#!/bin/sh\ntrap '' USR1\n{write}\n{'kill -USR1 $PPID; sleep 0.3' if signals else ''}\nexit 0\n")
    launcher.chmod(0o755)
    environment = {**JOB, "SLURM_JOB_END_TIME": "1893456000", "FEDMPI_REQUEUE": "no"}
    script = f"cd {tmp_path}; resumable {launcher} --with-ft ulfm --run-dir '{summary.parents[1]}' --resume"
    found, out, _ = ended(tmp_path, script, environment)
    assert (found, "is not finished" in out) == (code, code != 0)
    assert not list(tmp_path.glob(".begun*"))

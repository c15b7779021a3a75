"""What the sbatch files start with which words; in bash, without Slurm."""

import os
import subprocess
from pathlib import Path

import pytest
from slurm_cluster import ROOT

from fedmpi.main import parse


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Where the files are started. mpirun only says its words, a line each; a requeue ends the job's shell."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    (tmp_path / "slurm").symlink_to(ROOT / "slurm")
    mpirun = r"""printf '%s\n' "$@"; exit $MPIRUN_CODE"""
    for name, text in (("mpirun", mpirun), ("scontrol", "kill -TERM $PPID"), ("squeue", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run_file(project: Path, file: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """As a batch job of three ranks."""
    environment = {"PATH": f"{project}:{os.environ['PATH']}", "HOME": str(project), "SLURM_NTASKS": "3", **more}
    return subprocess.run(
        ["bash", f"slurm/{file}", *words], env=environment, cwd=project, capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize(("task", "code"), [("3", 0), ("4", 1)])
def test_a_task_beyond_the_list_of_configs(project: Path, task: str, code: int) -> None:
    """Ends before anything is started: no config would be the default one."""
    done = run_file(project, "sweep_array.sbatch", SLURM_ARRAY_TASK_ID=task, MPIRUN_CODE="0")
    assert done.returncode == code and ("heterofl_digits.yaml\nseed=1" in done.stdout) == (code == 0)
    assert len(done.stderr.splitlines()) == code and ("no config" in done.stderr) == (code != 0)


@pytest.mark.parametrize("file", sorted(path.name for path in ROOT.glob("slurm/*.sbatch")))
def test_words_after_the_file_come_last(project: Path, file: str) -> None:
    """So that of two --run-dir the user's counts: for the program, and for the note of the requeue."""
    job = {"SLURM_JOB_NAME": "me", "SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
    done = run_file(project, file, "rounds=2", "--run-dir", "mine", "seed=5", **job, MPIRUN_CODE="75")
    *words, said = done.stdout.splitlines()
    assert done.returncode == 0 and said == "requeued: job 17_3 begins again", done.stderr
    arguments = parse(words[words.index("fedmpi.main") + 1 :])
    assert arguments.run_dir == "mine" and arguments.resume and arguments.config.startswith("configs/")
    assert arguments.overrides[-2:] == ["rounds=2", "seed=5"]
    assert (project / "mine" / "requeued").exists() and not (project / "runs").exists()

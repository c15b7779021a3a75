"""`fedmpi.results.launch`: the Slurm job of runs."""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grids import write_config
from small_runs import run_all

from fedmpi.config.load import load
from fedmpi.mpi.communicator import SerialComm
from fedmpi.mpi.mpirun import environment
from fedmpi.results.launch import Job, sbatch_option, write_slurm_job
from fedmpi.results.run import Run
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir

OWN_DATA = """
import numpy as np

def vectors():
    x, y = np.arange(36, dtype=np.float32).reshape(12, 3), np.arange(12) % 2
    return {"train_x": x[:8], "train_y": y[:8], "test_x": x[8:], "test_y": y[8:]}
"""


def plan(folder: Path, *seeds: int, **changed: Any) -> list[Job]:
    words = [f"{key.replace('_', '.')}={value}" for key, value in changed.items()]
    config = write_config(folder / "base.yaml", "method.name=fedavg", "rounds=1")
    return [Job(RunDir(Path("out") / f"run-{n}"), load(config, [f"seed={n}", *words])) for n in seeds]


def write_job(jobs: list[Job], *options: str, **changed: Any) -> None:
    given = {"folder": Path("out").absolute(), "ranks": 1, "launcher": None}
    write_slurm_job(jobs, **{**given, "options": options, **changed})


def lines(folder: Path) -> list[str]:
    return (folder / "out" / "job.sbatch").read_text().splitlines()


def test_a_job_of_several_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an array of what is left. Ours are overridden by the user's options, the last of them counts."""
    monkeypatch.setenv("PYTHONPATH", "/my code")
    monkeypatch.setattr(sys, "argv", ["fedmpi grid", "my grid.yaml"])
    jobs = plan(here, 0, 1, 2, 3)
    run_all(jobs[2].config, SerialComm(), jobs[2].folder.path)
    given = ["time=02:00:00", "gres=gpu:4", "exclusive", "no-requeue", 'comment=it\'s "so"', "array=%2"]
    write_job(jobs, *given, ranks=5, launcher="srun --mpi=pmix -n {ranks}")
    text = lines(here)
    said = [line.removeprefix("#SBATCH --") for line in text if line.startswith("#SBATCH")]
    assert said[:5] == ["job-name=out", "array=1,2,4%2", "ntasks=5", "cpus-per-task=1", "time=02:00:00"]
    assert said[5:8] == ["signal=B:USR1@120", "open-mode=append", f"output={here}/out/slurm-%A_%a.log"]
    assert said[8:] == ["gres=gpu:4", "exclusive", "no-requeue", 'comment="it\'s \\"so\\""']
    assert "# Written by: fedmpi grid 'my grid.yaml'" in text and "export PYTHONPATH='/my code'" in text
    assert "start=(srun --mpi=pmix -n 5)" in text and f"cd {here}" in text and f"python={sys.executable}" in text
    (written,) = (here / "out" / "run-1").iterdir()
    assert f"  2) run=({written}) run_dir={here}/out/run-1 ;;" in text
    assert load(written, ()).to_dict() == jobs[1].config.to_dict()


def as_root() -> dict[str, str]:
    return {key: value for key, value in environment(1).items() if key.startswith("OMPI_ALLOW")}


def test_a_single_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with blanks, per cent and equals signs. bash runs what was written, without Slurm, from another folder,
    with the user's own code. Words after the file's name go to the run. A finished run ends with 0, too."""
    (here / "small.py").write_text(OWN_DATA)
    monkeypatch.syspath_prepend(here)
    own = ["data={name: small:vectors}", "model={name: mlp, hidden: [8]}"]
    plan(here)
    job = Job(RunDir(here / "50% lr=0.1" / "run"), load(here / "base.yaml", own))
    write_job([job], folder=here / "50% lr=0.1")
    text = (here / "50% lr=0.1" / "job.sbatch").read_text()
    assert f'#SBATCH --output="{here}/50%% lr=0.1/slurm-%A_%a.log"\n' in text
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", **as_root()}
    command = ["bash", "-s", "rounds=2"]
    for _ in range(2):
        done = subprocess.run(command, input=text, env=environ, cwd="/", capture_output=True, text=True)
        assert done.returncode == 0 and Run(job.folder.path).done == 2, done.stdout + done.stderr


def test_a_run_that_is_being_made_is_left_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said what is left and how it is submitted."""
    jobs = plan(here, 0, 1)
    jobs[0].folder.path.mkdir(parents=True)
    with RunLock(jobs[0].folder):
        write_job(jobs)
    assert "#SBATCH --array=2" in lines(here)
    out = capsys.readouterr().out
    assert "1 of 2 runs left" in out and f"sbatch {here}/out/job.sbatch" in out


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("grid.yaml", "expected a long option of sbatch"),
        ("time=", "expected a long option of sbatch"),
        ("comment=a\nrm -rf x", "expected a long option of sbatch"),
        ("ntasks=3", "expected --ranks in its place"),
        ("array=1-3", "expected array=%M"),
        ("signal=USR1@60", "expected signal=B:USR1@SECONDS"),
    ],
)
def test_options_that_cannot_be(option: str, problem: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=problem):
        sbatch_option(option)
    assert sbatch_option("--time=01:00:00") == "time=01:00:00"

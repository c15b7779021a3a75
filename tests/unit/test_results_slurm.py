"""`fedmpi.results.launch`: the job of runs, what sbatch and squeue are told and answer, and no run twice."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_runs import run_all
from studied_runs import write_config

from fedmpi.config.load import load
from fedmpi.errors import UserError
from fedmpi.mpi.communicator import SerialComm
from fedmpi.mpi.mpirun import environment
from fedmpi.results import launch
from fedmpi.results.launch import Job, hand_over, sbatch_option
from fedmpi.results.run import Run
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir

OWN_DATA = """
import numpy as np

def vectors():
    x, y = np.arange(36, dtype=np.float32).reshape(12, 3), np.arange(12) % 2
    return {"train_x": x[:8], "train_y": y[:8], "test_x": x[8:], "test_y": y[8:]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder; no Slurm is there, whatever is installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch.shutil, "which", lambda name: None)
    return tmp_path


def plan(folder: Path, *seeds: int, **changed: Any) -> list[Job]:
    words = [f"{key.replace('_', '.')}={value}" for key, value in changed.items()]
    config = write_config(folder / "base.yaml", "method.name=fedavg", "rounds=1")
    return [Job(f"run {n}", RunDir(Path("out") / f"run-{n}"), load(config, [f"seed={n}", *words])) for n in seeds]


def submit(jobs: list[Job], *options: str, **changed: Any) -> None:
    given = {"folder": Path("out").absolute(), "ranks": 1, "launcher": None, "submit": False}
    hand_over(jobs, **{**given, "options": options, **changed})


def lines(folder: Path) -> list[str]:
    return (folder / "out" / "job.sbatch").read_text().splitlines()


def answering(monkeypatch: pytest.MonkeyPatch, **answers: tuple[int, str, str]) -> list[tuple[str, ...]]:
    """Commands of Slurm that answer with exit code, output and errors; the words that they were called with."""
    calls: list[tuple[str, ...]] = []

    def run(command: tuple[str, ...], **more: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, *answers[command[0]])

    monkeypatch.setattr(launch.shutil, "which", lambda name: name if name in answers else None)
    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(run=run))
    return calls


def test_a_job_of_several_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an array of what is left. Ours are overridden by the user's options, the last of them counts."""
    monkeypatch.setenv("PYTHONPATH", "/my code")
    monkeypatch.setattr(sys, "argv", ["fedmpi grid", "my grid.yaml"])
    jobs = plan(folder, 0, 1, 2, 3)
    run_all(jobs[2].config, SerialComm(), jobs[2].folder.path)
    given = ["time=02:00:00", "gres=gpu:4", "exclusive", "no-requeue", 'comment=it\'s "so"', "array=%2"]
    submit(jobs, *given, ranks=5, launcher="srun --mpi=pmix -n {ranks}")
    text = lines(folder)
    said = [line.removeprefix("#SBATCH --") for line in text if line.startswith("#SBATCH")]
    assert said[:5] == ["job-name=out", "array=1,2,4%2", "ntasks=5", "cpus-per-task=1", "time=02:00:00"]
    assert said[5:8] == ["signal=B:USR1@120", "open-mode=append", f"output={folder}/out/slurm-%A_%a.log"]
    assert said[8:] == ["gres=gpu:4", "exclusive", "no-requeue", 'comment="it\'s \\"so\\""']
    assert "# Written by: fedmpi grid 'my grid.yaml'" in text and "export PYTHONPATH='/my code'" in text
    assert "start=(srun --mpi=pmix -n 5)" in text and f"cd {folder}" in text and f"python={sys.executable}" in text
    (written,) = (folder / "out" / "run-1").iterdir()
    assert f"  2) run=({written}) run_dir={folder}/out/run-1 ;;" in text
    assert load(written, ()).to_dict() == jobs[1].config.to_dict()


def as_root() -> dict[str, str]:
    return {key: value for key, value in environment(1).items() if key.startswith("OMPI_ALLOW")}


@pytest.mark.slow
def test_a_single_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with blanks, per cent and equals signs. bash runs what was written, without Slurm, from another folder,
    with the user's own code. Words after the file's name go to the run. A finished run ends with 0, too."""
    (folder / "small.py").write_text(OWN_DATA)
    monkeypatch.syspath_prepend(folder)
    own = ["data={name: small:vectors}", "model={name: mlp, hidden: [8]}"]
    plan(folder)
    job = Job("x", RunDir(folder / "50% lr=0.1" / "run"), load(folder / "base.yaml", own))
    submit([job], folder=folder / "50% lr=0.1")
    text = (folder / "50% lr=0.1" / "job.sbatch").read_text()
    assert f'#SBATCH --output="{folder}/50%% lr=0.1/slurm-%A_%a.log"\n' in text
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", **as_root()}
    for _ in range(2):
        done = subprocess.run(
            ["bash", "-s", "rounds=2"], input=text, env=environ, cwd="/", capture_output=True, text=True
        )
        assert done.returncode == 0 and Run(job.folder.path).done == 2, done.stdout + done.stderr


def test_submitting(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run's folder says which task it waits for; a second command leaves out what is in the queue."""
    calls = answering(monkeypatch, sbatch=(0, "17;cluster\n", ""), squeue=(0, "", ""))
    jobs = plan(folder, 0, 1)
    submit(jobs, submit=True)
    assert calls[-1] == ("sbatch", "--parsable", f"{folder}/out/job.sbatch")
    out = capsys.readouterr().out
    assert "2 of 2 runs left" in out and "submitted job 17" in out
    assert Run(jobs[1].folder.path).state == "queued" and Run(jobs[1].folder.path).submission["job"] == "17_2"
    answering(monkeypatch, sbatch=(0, "18\n", ""), squeue=(0, "17_2\n16\n", ""))
    submit(jobs, submit=True)
    assert "#SBATCH --array=1" in lines(folder) and Run(jobs[0].folder.path).submission["job"] == "18_1"
    (folder / "out" / "job.sbatch").unlink()
    answering(monkeypatch, squeue=(0, "17_2\n18_1\n", ""))
    submit(jobs)
    assert not (folder / "out" / "job.sbatch").exists()


def test_what_slurm_does_not_know(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out: a run that is being made, one whose job went back into the queue, one that Slurm requeued by itself.
    Not one whose job was cancelled."""
    jobs = plan(folder, 0, 1, 2, 3)
    running, requeued, by_slurm, cancelled = (job.folder for job in jobs)
    for run in (running, requeued, by_slurm, cancelled):
        run.path.mkdir(parents=True)
    requeued.requeued_path.write_text("5_2 1\n")
    by_slurm.manifest_path.write_text(json.dumps({"starts": [{"job": "6"}]}))
    cancelled.submission_path.write_text(json.dumps({"job": "7", "starts": 0}))
    answering(monkeypatch, squeue=(0, "5_2\n6\n", ""))
    with RunLock(running):
        submit(jobs)
    assert "#SBATCH --array=4" in lines(folder)


def test_a_config_that_is_edited_while_it_waits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has the config of its submission; the difference is said, and nothing is written."""
    answering(monkeypatch, sbatch=(0, "17\n", ""), squeue=(0, "", ""))
    jobs = plan(folder, 0)
    submit(jobs, submit=True)
    answering(monkeypatch, squeue=(0, "17_1\n", ""))
    before = lines(folder)
    with pytest.raises(UserError, match="run has 0.05, you ask 0.7; cancel its job first, or take another --out$"):
        submit(plan(folder, 0, train_lr=0.7))
    assert lines(folder) == before
    answering(monkeypatch, squeue=(0, "", ""))
    submit(plan(folder, 0, train_lr=0.7))
    assert load(jobs[0].folder.submitted_config_path, ()).train.lr == 0.7


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({}, "^--submit: no sbatch in PATH; give this command where Slurm is$"),
        ({"squeue": (1, "", "squeue: error: DNS\nsqueue: fatal: No configuration\n")}, "^squeue: .*No configuration$"),
        ({"sbatch": (1, "", "sbatch: error: invalid partition: x\n")}, "sbatch: error: invalid partition: x$"),
    ],
)
def test_what_slurm_refuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], problem: str
) -> None:
    answering(monkeypatch, **answers)
    jobs = plan(folder, 0, 1)
    with pytest.raises(UserError, match=problem):
        submit(jobs, submit=True)
    assert not any(job.folder.submission_path.exists() for job in jobs)


def test_a_job_is_written_where_slurm_does_not_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is not asked about runs that were never submitted."""
    answering(monkeypatch, squeue=(1, "", "squeue: fatal: No configuration\n"))
    submit(plan(folder, 0, 1), submit=False)
    assert (folder / "out" / "job.sbatch").is_file()


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

"""`fedmpi.results.launch`: runs are made here, several at a time, and none outlives the call; or by a job of Slurm."""

import argparse
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data_fixtures import refusal
from grids import write_config as write_base
from launched import LIMIT_S, all_end, descendants
from small_runs import finished, run_all

from fedmpi.config.load import load
from fedmpi.errors import UserError
from fedmpi.main import main
from fedmpi.mpi.communicator import SerialComm
from fedmpi.mpi.mpirun import environment
from fedmpi.results import launch
from fedmpi.results.launch import Job, make, sbatch_option, write_config, write_slurm_job
from fedmpi.results.run import Run
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir


def jobs_of(folder: Path, *seeds: int, rounds: int = 1) -> list[Job]:
    """A run of each of these seeds below `folder`/out."""
    base = write_base(folder / "base.yaml", "method.name=fedavg", f"rounds={rounds}")
    return [Job(RunDir(folder / "out" / f"avg-seed{n}"), load(base, [f"seed={n}"])) for n in seeds]


@pytest.fixture
def plan(tmp_path: Path) -> list[Job]:
    """Three runs of two rounds."""
    return jobs_of(tmp_path, 0, 1, 2, rounds=2)


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that is started in place of this interpreter."""
    path = tmp_path / "python"
    monkeypatch.setattr(launch.sys, "executable", str(path))
    return path


def write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.mark.slow
def test_runs_are_made_side_by_side(plan: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    """To the bits of one process; the same command again makes nothing."""
    assert make(plan[:2], at_once=2) == 0 and all(job.run().is_finished for job in plan[:2])
    out, _ = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines() if line.startswith("[")][:2] == ["[1/2]", "[2/2]"]
    assert out.count("finished (") == 2 and out.count("started, log") == 2
    here = plan[0].folder.path.with_name("here")
    run_all(plan[0].config, SerialComm(), here)
    assert finished(plan[0].folder.path) == finished(here)
    capsys.readouterr()
    assert make(plan[:2]) == 0 and capsys.readouterr().out == "2 runs of 2 finished before\n"


@pytest.mark.slow
def test_a_run_on_ranks_continues(plan: list[Job]) -> None:
    """After its first round, stopped for lack of time."""
    job = plan[0]
    write_config(job)
    words = [str(job.folder.submitted_config_path), "mpi.time_limit_s=0.001", "--run-dir", str(job.folder.path)]
    assert main(words) == 75
    assert make([job], ranks=2) == 0 and job.run().done == 2 and len(job.run().starts) == 2


def test_a_failure_ends_no_other(plan: list[Job], python: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake is shown with the line that says it; what the log had before is not."""
    write_script(python, "echo 'own.yaml: old'; exit 1")
    assert make(plan[:1]) == 1
    assert "failed with exit code 1" in " ".join(capsys.readouterr().out.split())
    says = 'echo "in use: x"; echo "    y"; exit 2'
    write_script(python, f"case $* in *seed0*) {says} ;; *) exit 3 ;; esac")
    assert make(plan) == 1
    lines = " ".join(capsys.readouterr().out.split())
    assert "[1/3] avg-seed0: failed with exit code 2 (0 s): in use: x y; see " in lines
    assert lines.count("failed with exit code 3") == 2 and "own.yaml" not in lines


def test_a_run_without_time_left_starts_no_other(plan: list[Job], python: Path) -> None:
    write_script(python, f"echo >>{python}.calls; exit 75")
    assert make(plan) == 75 and Path(f"{python}.calls").read_text().count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_an_interrupt_ends_all(
    plan: list[Job], python: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where a second signal comes while they are ended."""
    again = f"trap 'kill -{number} $PPID; exit' TERM"
    both = f"until [ $(cat {python}.pids | wc -l) = 2 ]; do sleep 0.05; done"
    write_script(python, f"{again}; echo $$ >>{python}.pids; {both}; kill -{number} $PPID; while :; do sleep 0.1; done")
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    started_s = time.monotonic()
    assert make(plan, at_once=2) == 130 and time.monotonic() - started_s < 50
    assert "the same command continues from here" in capsys.readouterr().err
    pids = Path(f"{python}.pids").read_text().split()
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == handlers


def test_a_folder_of_another_config_is_refused(plan: list[Job]) -> None:
    run_all(plan[0].config, SerialComm(), plan[0].folder.path)
    other = replace(plan[0], config=plan[0].config.model_copy(update={"rounds": 3}))
    line = "was run with another config: rounds: run has 2, you ask 3; take another --out"
    assert line in refusal(other.refuse_other)


def test_a_program_that_cannot_be_started_is_one_line(plan: list[Job], tmp_path: Path) -> None:
    (tmp_path / "start").write_bytes(b"\x00\x01")
    (tmp_path / "start").chmod(0o755)
    with pytest.raises(UserError, match="start: cannot be started: Exec format error$"):
        make(plan, launcher=f"{tmp_path}/start {{ranks}}")


@pytest.mark.slow
def test_ranks_do_not_outlive_a_terminated_command(plan: list[Job], tmp_path: Path) -> None:
    """SIGTERM to the process that makes a run on two ranks."""
    script = tmp_path / "make.py"
    words = (str(tmp_path / "base.yaml"), str(plan[0].folder.path))
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom fedmpi.config.load import load\n"
        "from fedmpi.results.launch import Job, make\nfrom fedmpi.store.run_dir import RunDir\n"
        'job = Job(RunDir(Path(sys.argv[2])), load(sys.argv[1], ["rounds=100000"]))\n'
        "sys.exit(make([job], ranks=2))\n"
    )
    process = subprocess.Popen([sys.executable, str(script), *words], cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + LIMIT_S
    while not plan[0].folder.records_path.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    family = descendants(process.pid)
    assert len(family) >= 3
    process.terminate()
    assert process.wait(LIMIT_S) == 130
    assert all_end(family, time.monotonic() + LIMIT_S)


# The job of Slurm.


OWN_DATA = """
import numpy as np

def vectors():
    x, y = np.arange(36, dtype=np.float32).reshape(12, 3), np.arange(12) % 2
    return {"train_x": x[:8], "train_y": y[:8], "test_x": x[8:], "test_y": y[8:]}
"""


def write_job(jobs: list[Job], *options: str, **changed: Any) -> None:
    given = {"folder": Path("out").absolute(), "ranks": 1, "launcher": None}
    write_slurm_job(jobs, **{**given, "options": options, **changed})


def lines(folder: Path) -> list[str]:
    return (folder / "out" / "job.sbatch").read_text().splitlines()


def test_a_job_of_several_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an array of what is left. Ours are overridden by the user's options, the last of them counts."""
    monkeypatch.setenv("PYTHONPATH", "/my code")
    monkeypatch.setattr(sys, "argv", ["fedmpi grid", "my grid.yaml"])
    jobs = jobs_of(Path(), 0, 1, 2, 3)
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
    (written,) = (here / "out" / "avg-seed1").iterdir()
    assert f"  2) run=({written}) run_dir={here}/out/avg-seed1 ;;" in text
    assert load(written, ()).to_dict() == jobs[1].config.to_dict()


def test_a_single_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with blanks, per cent and equals signs. bash runs what was written, without Slurm, from another folder,
    with the user's own code. Words after the file's name go to the run. A finished run ends with 0, too."""
    (here / "small.py").write_text(OWN_DATA)
    monkeypatch.syspath_prepend(here)
    own = ["data={name: small:vectors}", "model={name: mlp, hidden: [8]}"]
    jobs_of(here)
    job = Job(RunDir(here / "50% lr=0.1" / "run"), load(here / "base.yaml", own))
    write_job([job], folder=here / "50% lr=0.1")
    text = (here / "50% lr=0.1" / "job.sbatch").read_text()
    assert f'#SBATCH --output="{here}/50%% lr=0.1/slurm-%A_%a.log"\n' in text
    as_root = {key: value for key, value in environment(1).items() if key.startswith("OMPI_ALLOW")}
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", **as_root}
    command = ["bash", "-s", "rounds=2"]
    for _ in range(2):
        done = subprocess.run(command, input=text, env=environ, cwd="/", capture_output=True, text=True)
        assert done.returncode == 0 and Run(job.folder.path).done == 2, done.stdout + done.stderr


def test_a_run_that_is_being_made_is_left_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said what is left and how it is submitted."""
    jobs = jobs_of(Path(), 0, 1)
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

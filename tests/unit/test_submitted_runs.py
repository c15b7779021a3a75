"""`jobs/submit.py` hands runs to Slurm: what sbatch and squeue are told and answer, and no run twice."""

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from golden_file import Told
from small_runs import run_all, small_config
from studied_runs import Called, calling, config_file, without_squeue

from fedmpi.command.plan import main as plan
from fedmpi.config import yaml_text
from fedmpi.config.load import load
from fedmpi.mpi.serial import SerialComm
from fedmpi.results.run import Run
from fedmpi.store import manifest
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.slurm import queue as slurm_queue
from fedmpi.studies.slurm import submit

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("no_squeue")
called, config, no_squeue = calling(submit.main), config_file, without_squeue


def test_submitting(config: Path, tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    """sbatch gets the file; then each run's folder says which task it waits for, and can be begun all the same."""
    given = answers(monkeypatch, "17;cluster\n")
    words = [config, "rounds=1", "--sweep", "seed=0,1", "--submit"]
    folder = tmp_path / "runs" / "mine"
    code, out, _ = called(*words)
    assert code == 0 and given == [["sbatch", "--parsable", str(folder / "job.sbatch")]] and "submitted job 17" in out
    found = Run(folder / "mine-seed1")
    assert (found.state, found.job, len(found.starts), found.continues_after) == ("queued", "17_2", 0, 0)
    run_all(small_config("method.name=fedavg", "rounds=1"), SerialComm(), folder / "mine-seed0")
    assert Run(folder / "mine-seed0").state == "finished"
    monkeypatch.setattr(slurm_queue.shutil, "which", lambda name: None)
    code, _, err = called(*words, "--again")
    assert code == 2
    told(err)


def test_what_runs_or_waits_is_not_submitted_twice(config: Path, tmp_path: Path, called: Called, told: Told) -> None:
    """Only with `--again`; an interrupted run is submitted."""
    words = [config, "rounds=1", "--sweep", "seed=0,1,2"]
    running, queued, requeued = (RunDir(tmp_path / "runs" / "mine" / f"mine-seed{seed}") for seed in range(3))
    for run in (running, queued, requeued):
        run.path.mkdir(parents=True)
    queued.submission_path.write_text(json.dumps({"job": "17_2", "starts": 0}))
    file = tmp_path / "runs" / "mine" / "job.sbatch"
    with RunLock(running):
        code, out, _ = called(*words)
        assert code == 0
        told(out)
        assert "#SBATCH --array=3\n" in file.read_text()
        requeued.requeued_path.write_text("17_3\n")
        file.unlink()
        code, out, _ = called(*words, "--submit")
        assert code == 0
        told(out)
        assert not file.exists()
        told(called(*words, "--again")[1])


def test_a_config_that_is_edited_while_it_waits(
    config: Path, tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    """The job has what it was submitted with; asked for again, the difference is told, and nothing is written."""
    answers(monkeypatch, "17\n")
    words = [config, "--sweep", "seed=0,1", "--submit"]
    assert called(*words)[0] == 0
    run = RunDir(tmp_path / "runs" / "mine" / "mine-seed1")
    (first,) = run.path.glob("*.yaml")
    config.write_text(yaml_text.dump(small_config("method.name=fedavg", "train.lr=0.7", "rounds=9").to_dict()))
    file = tmp_path / "runs" / "mine" / "job.sbatch"
    file.unlink()
    code, _, err = called(*words)
    run = RunDir(tmp_path / "runs" / "mine" / "mine-seed0")
    assert code == 2
    told(err)
    assert not file.exists()
    assert called(*words, "--again")[0] == 0
    assert load(first, ()).train.lr == 0.05 and str(first) not in file.read_text()
    (second,) = set(first.parent.glob("*.yaml")) - {first}
    assert load(second, ()).train.lr == 0.7 and str(second) in file.read_text()


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [("", 0, "answers '' instead"), ("Submitted batch job 17\n", 0, "batch job 17"), ("", 1, "highest task is 3;")],
)
def test_an_answer_of_sbatch_that_is_no_number(
    config: Path, called: Called, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, said: str
) -> None:
    answers(monkeypatch, answer, code=code)
    found, _, err = called(config, "--sweep", "seed=4,5,6", "--submit")
    assert found == (code or 2) and said in err and err.count("\n") == 1


def test_without_slurm_one_line_says_so(
    config: Path, called: Called, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its commands are installed, but nobody answers them: what they say as of Slurm 23.11."""
    why = "Could not establish a configuration source"
    for name in ("squeue", "sbatch"):
        lines = ("error: Unknown host", "error: DNS lookup failed", f"fatal: {why}")
        said = "\n".join(f"{name}: {line}" for line in lines)
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_queue.shutil, "which", lambda name: f"{tmp_path}/{name}")
    asked = f"squeue: {why}; the run directories are asked instead\n"
    assert called(config)[::2] == (0, asked)
    code, _, refused = called(config, "--submit")
    assert code == 2 and refused.startswith(f"{asked}--submit: ") and why in refused.removeprefix(asked)
    answers(monkeypatch, "", 1, f"sbatch: {(refused := 'error: invalid partition specified: x')}\n")
    code, _, err = called(config, "--submit")
    assert code == 1 and refused in err and err.count("\n") == 1


def answers(monkeypatch: pytest.MonkeyPatch, answer: str, code: int = 0, stderr: str = "") -> list[Sequence[str]]:
    """What sbatch says; there is no squeue. The commands that it was called with."""
    given: list[Sequence[str]] = []

    def sbatch(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        given.append(command)
        return subprocess.CompletedProcess(command, code, stdout=answer, stderr=stderr)

    monkeypatch.setattr(slurm_queue.shutil, "which", lambda name: "/bin/sbatch" if name == "sbatch" else None)
    monkeypatch.setattr(slurm_queue.subprocess, "run", sbatch)
    return given


def test_a_folder_with_an_equals_sign(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], called: Called
) -> None:
    """As those of `jobs/reproduce.py` have: the program must not take its config's path for an override."""
    out = tmp_path / "lr=0.1"
    assert called(config, "rounds=1", "--out", out, "--ranks", "1")[0] == 0
    line = next(line for line in (out / "mine" / "job.sbatch").read_text().splitlines() if line.startswith("run="))
    words = shlex.split(line.removeprefix("run=(").removesuffix(")"))
    assert plan(words[:1]) == 0 and "fedavg" in capsys.readouterr().out


def test_data_are_where_they_are_seen_from_here(config: Path, tmp_path: Path, called: Called) -> None:
    """The job starts in another folder; one's home folder is what it is there."""
    for out, given, meant in (("1", "my data", f"{tmp_path}/my data"), ("~2", "~/data", "~/data"), ("3", "/a", "/a")):
        assert called(config, "data={name: cifar10}", f"data.root={given}", "--out", f"./{out}")[0] == 0
        (written,) = (tmp_path / out / "mine" / "mine").iterdir()
        assert load(written, ()).data.root == meant


def test_slurm_is_asked_which_jobs_there_are(
    config: Path, tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    """A job that failed before its run began is submitted again; not one that Slurm requeued, or that just starts."""
    runs = [RunDir(tmp_path / "runs" / "mine" / f"mine-seed{seed}") for seed in range(5)]
    for run in runs:
        run.path.mkdir(parents=True)
    failed, starting, by_slurm, by_itself, running = runs
    failed.submission_path.write_text(json.dumps({"job": "17_1", "starts": 0}))
    starting.submission_path.write_text(json.dumps({"job": "17_2", "starts": 0}))
    manifest.add_start(by_slurm, {"job": "18"})
    manifest.add_start(by_slurm, {"job": "19"})
    by_itself.requeued_path.write_text("20_4 3\n")
    words = [config, "rounds=1", "--sweep", "seed=0,1,2,3,4"]
    found = called_with_squeue(called, monkeypatch, tmp_path, "printf '17_2\\n19\\n20_4\\n'", words, running)
    told(found)
    file = tmp_path / "runs" / "mine" / "job.sbatch"
    assert "#SBATCH --array=1\n" in file.read_text()
    assert (tmp_path / "asked").read_text() == "--noheader --array --format %i\n"
    found = called_with_squeue(called, monkeypatch, tmp_path, "printf '18\\n17_20\\n'", words, running)
    told(found)
    monkeypatch.setattr(slurm_queue, "_SQUEUE_TIMEOUT_S", 0.2)
    for answer in ("echo 19; exit 1", "echo 19; exec sleep 9"):
        found = called_with_squeue(called, monkeypatch, tmp_path, answer, words, running)
        told(found)
        assert "#SBATCH --array=3\n" in file.read_text()


def called_with_squeue(
    called: Called,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    answer: str,
    words: Sequence[str | Path],
    running: RunDir,
) -> str:
    """What is said while a run runs, and a squeue answers."""
    squeue = folder / "squeue"
    squeue.write_text(f'#!/bin/sh\necho "$SQUEUE_STATES$@" > {folder}/asked\n{answer}\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("SLURM_JOB_ID", "18")  # an interactive job from which this is called
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")  # as a user may like it, but there are others
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_queue.shutil, "which", lambda name: f"{folder}/{name}")
    with RunLock(running):
        code, out, _ = called(*words)
    assert code == 0
    return out

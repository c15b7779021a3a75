"""`jobs/submit.py`: the sbatch file of a run and of a sweep, what it refuses and submits, and what `status` shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from small_runs import run_all, small_config

from fedmpi.config import yaml_text
from fedmpi.errors import ConfigError
from fedmpi.mpi import SerialComm
from fedmpi.output import RunDir, manifest
from fedmpi.output.lock import STALE_AFTER_S, Holder, RunLock
from fedmpi.stopping import Stopping

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "jobs"))  # scripts, and no package

import run_status  # noqa: E402
import slurm_array  # noqa: E402
import slurm_runs  # noqa: E402
import submit  # noqa: E402

SWEEP = slurm_runs.Batch(
    "grid", ["python", "jobs/submit.py", "a.yaml", "--sweep", "seed=0,1,2"],
    [["/c/a.yaml", f"seed={seed}", "model.blocks=[1, 1]", "--run-dir", f"/r/grid/a-seed{seed}"] for seed in range(3)],
    [1, 3], 5, "/r/grid", "/home/me/fed mpi", 2, ["time=01:00:00", "gres=gpu:4", "exclusive"],
)  # fmt: skip
ONE = slurm_runs.Batch(
    "one", ["python", "jobs/submit.py", "a.yaml"], [["/c/a.yaml", "--run-dir", "/r/one/a"]], [1], 3, "/r/one", "/p",
    launcher="srun --mpi=pmix -n 3",
)  # fmt: skip


@pytest.mark.parametrize(("name", "batch"), [("sweep", SWEEP), ("one", ONE)])
def test_the_file_is_as_recorded(name: str, batch: slurm_runs.Batch) -> None:
    """If it should be different now: delete the file, run the test twice and look at the difference."""
    golden = ROOT / "tests" / "golden" / f"submit_{name}.sbatch"
    if not golden.exists():
        golden.write_text(slurm_runs.sbatch(batch))
        pytest.fail(f"{golden} was not there; it is now what the code writes")
    assert slurm_runs.sbatch(batch) == golden.read_text()


def test_a_task_s_words_survive_the_shell() -> None:
    """bash, run on the file as a task of the array, passes on exactly the words of its run."""
    text = slurm_runs.sbatch(SWEEP)
    case = text[text.index("case ") : text.index("esac") + 4]
    for number, run in enumerate(SWEEP.runs, 1):
        command = ["bash", "-c", f'{case}\nprintf "%s\\n" "${{run[@]}}"']
        done = subprocess.run(command, env={"SLURM_ARRAY_TASK_ID": str(number)}, capture_output=True, text=True)
        assert done.stdout.splitlines() == run, done.stderr


SCRIPTS = [*ROOT.glob("slurm/*.s*"), *ROOT.glob("tests/golden/*.sbatch")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_bash_understands_the_files(path: Path) -> None:
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True).returncode == 0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml_text.dump(small_config("method.name=fedavg").to_dict()))
    return path


def called(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = submit.main([str(word) for word in words])
    return (code, *capsys.readouterr())


def test_a_grid(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every combination has a folder of its own; commas in brackets part nothing; a finished run is left out."""
    words = [config, "rounds=1", "--sweep", "seed=0,1", "--sweep", "model.blocks=[1,1],[1]", "--out", tmp_path / "runs"]
    code, out, _ = called(capsys, *words, "--array-max", "2")
    folder = tmp_path / "runs" / "mine"
    assert code == 0 and "4 of 4 runs are left" in out and f"sbatch {folder}/job.sbatch" in out
    text = (folder / "job.sbatch").read_text()
    assert "#SBATCH --array=1-4%2\n" in text and text.count("--run-dir") == 4
    third = f"{config} rounds=1 seed=1 'model.blocks=[1,1]' --run-dir {folder}/mine-seed1-blocks1_1"
    assert f"3) run=({third}) ;;\n" in text
    assert [path.name for path in folder.iterdir()] == ["job.sbatch"]
    run_all(small_config("method.name=fedavg", "rounds=1", "seed=1"), SerialComm(), folder / "mine-seed1-blocks1_1")
    assert called(capsys, *words)[0] == 0
    assert "#SBATCH --array=1-2,4\n" in (folder / "job.sbatch").read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["train.lr=fast"], "train.lr"),
        (["--sweep", "train.lr=0.1,fast"], "train.lr"),
        (["--sweep", "seed"], "expected section.key=a,b,c, got 'seed'"),
        (["--sweep", "seed=1,,2"], "expected section.key=a,b,c"),
        (["--sweep", "seed=1,1"], "two runs would be called mine-seed1"),
        (["--ranks", "0"], "--ranks"),
        (["--sbatch-option", "-p gpu"], "of sbatch, as partition=gpu or exclusive, got '-p gpu'"),
        (["--sbatch-option", "partition gpu"], "expected a long option"),
        (["--sbatch-option", "time="], "time has no value"),
        (["--sbatch-option", "comment=a\nrm x"], "words of one line of printable characters, got 'comment=a\\nrm x'"),
        (["--name", "a\nrm x"], "words of one line"),
        (["--sbatch-option", "array=1-9"], "array is set by --array-max"),
        (["--sbatch-option=--ntasks=9"], "ntasks is set by --ranks"),
        (["--sbatch-option", "wrap=date"], "wrap is set by --launcher"),
        (["--ranks", "3", "--launcher", "srun --ntasks=5"], "--launcher: starts 5 ranks, but --ranks is 3"),
        (["--launcher", "env 'x"], "--launcher: cannot be read: No closing quotation"),
        (["--sbatch-option", "signal=TERM@60"], "signal must be B:USR1@SECONDS"),
        (["--sbatch-option", "time=2"], "time=2 is not longer than the 120 s before its end at which the signal comes"),
        (["--sbatch-option", "signal=B:USR1@86400"], "time=24:00:00 is not longer than the 86400 s"),
    ],
)
def test_mistakes_are_one_line(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    """Also in the last run of a sweep; nothing is written."""
    code, out, err = called(capsys, config, *words, "--out", tmp_path / "runs")
    assert code == 2 and problem in err and len(err.splitlines()) == 1 and out == ""
    assert not (tmp_path / "runs").exists()


def test_options_for_sbatch(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours can be overridden, `--` may stay, a value is quoted as sbatch reads it; of an option the last counts."""
    given = ["--time=01:00:00", "time=02:00:00", "exclusive", "no-requeue", "signal=B:USR1@300", 'comment=it\'s "so"']
    words = [f"--sbatch-option={option}" for option in given]
    assert called(capsys, config, *words, "--out", tmp_path / "100%")[0] == 0
    lines = (tmp_path / "100%" / "mine" / "job.sbatch").read_text().splitlines()
    assert [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")] == [
        "job-name=mine", "ntasks=5", "cpus-per-task=1", "time=02:00:00", "signal=B:USR1@300", "open-mode=append",
        f"output={tmp_path}/100%%/mine/slurm-%j.log", "exclusive", "no-requeue", 'comment="it\'s \\"so\\""',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("3", 180), ("2:30", 150), ("1:00:30", 3630), ("1-2", 93600), ("1-2:03", 93780), ("1-2:03:04", 93784)],
)
def test_a_time_must_outlast_the_signal(time: str, seconds: int) -> None:
    """In each of Slurm's forms; what it calls unlimited does."""
    slurm_array.check_time([f"time={time}", f"signal=B:USR1@{seconds - 1}"])
    with pytest.raises(ConfigError, match=f"not longer than the {seconds} s"):
        slurm_array.check_time([f"time={time}", f"signal=B:USR1@{seconds}"])
    slurm_array.check_time(["time=UNLIMITED"])
    slurm_array.check_time(["time=0"])


def test_submitting(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch gets the file; then each run's folder says which task it waits for, and can be begun all the same."""
    given: list[Sequence[str]] = []

    def sbatch(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        given.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="17;cluster\n")

    monkeypatch.setattr(submit.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(submit.subprocess, "run", sbatch)
    words = [config, "rounds=1", "--sweep", "seed=0,1", "--out", tmp_path / "runs", "--submit"]
    folder = tmp_path / "runs" / "mine"
    code, out, _ = called(capsys, *words)
    assert code == 0 and given == [["sbatch", "--parsable", str(folder / "job.sbatch")]] and "submitted job 17" in out
    found = run_status.status_of(RunDir(folder / "mine-seed1"))
    assert (found.state, found.job, found.starts, found.round) == ("queued", "17_2", 0, 0)
    run_all(small_config("method.name=fedavg", "rounds=1"), SerialComm(), folder / "mine-seed0")
    assert run_status.status_of(RunDir(folder / "mine-seed0")).state == "finished"
    monkeypatch.setattr(submit.shutil, "which", lambda name: None)
    code, _, err = called(capsys, *words, "--again")
    assert code == 2 and "no sbatch in PATH" in err


def test_what_runs_or_waits_is_not_submitted_twice(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only with `--again`; an interrupted run is submitted."""
    words = [config, "rounds=1", "--sweep", "seed=0,1,2", "--out", tmp_path / "runs"]
    running, queued, requeued = (RunDir(tmp_path / "runs" / "mine" / f"mine-seed{seed}") for seed in range(3))
    for run in (running, queued, requeued):
        run.path.mkdir(parents=True)
    queued.submission_path.write_text(json.dumps({"job": "17_2", "starts": 0}))
    file = tmp_path / "runs" / "mine" / "job.sbatch"
    with RunLock(running):
        code, out, _ = called(capsys, *words)
        assert code == 0 and out.startswith("2 of 3 runs run or wait in the queue, and are left out (not with --again)")
        assert "\n1 of 3 runs are left" in out and "#SBATCH --array=3\n" in file.read_text()
        requeued.requeued_path.write_text("17_3\n")
        file.unlink()
        code, out, _ = called(capsys, *words, "--submit")
        assert code == 0 and out.startswith("3 of 3 runs run or wait") and not file.exists()
        assert "3 of 3 runs are left" in called(capsys, *words, "--again")[1]


# Status.


class StopsAfter(Stopping):
    """Wishes to stop after so many rounds."""

    def __init__(self, rounds: int) -> None:
        super().__init__(0.0)
        self._rounds = rounds

    def wish(self, round_s: float) -> int:
        super().wish(round_s)
        self._rounds -= 1
        return int(self._rounds == 0)


@pytest.fixture
def stopped(tmp_path: Path) -> RunDir:
    """A run of three rounds that stopped after two."""
    from fedmpi.experiment import run

    config = small_config("method.name=fedavg", "output.checkpoint_every=9")
    folder = tmp_path / "runs" / "a"
    words = {"run_dir": str(folder), "resume": False, "command": ("test",), "where": {}}
    assert run(config, SerialComm(), **words, stopping=StopsAfter(2)) is False
    return RunDir(folder)


def test_a_run_that_is_to_go_on(stopped: RunDir) -> None:
    found = run_status.status_of(stopped)
    assert (found.state, found.starts, found.round, found.rounds) == ("stopped", 1, 2, 3)
    records = [json.loads(line) for line in stopped.records_path.read_text().splitlines()]
    assert found.accuracy == records[1]["tiers"]["1"]["accuracy"]
    assert found.eta_s == pytest.approx(sum(record["seconds"]["wall"] for record in records) / 2)


def test_a_run_that_was_killed(stopped: RunDir) -> None:
    """Started once more, and nobody is there: its lock is of a process that is gone, or is empty."""
    manifest.add_start(stopped, {"job": "18"})
    found = run_status.status_of(stopped)
    assert (found.state, found.job, found.starts) == ("interrupted", "18", 2)
    gone = Holder.this_process("18").__dict__ | {"start": "another boot:1"}
    stopped.lock_path.write_text(json.dumps(gone))
    assert run_status.status_of(stopped).state == "interrupted"
    stopped.submission_path.write_text(json.dumps({"job": "19", "starts": 2}))
    assert (run_status.status_of(stopped).state, run_status.status_of(stopped).job) == ("queued", "19")


def test_a_run_that_lost_ranks(stopped: RunDir) -> None:
    """What a newer version notes with a start, or beside the starts, changes nothing: rank 0 taken over, ranks lost."""
    losses = [{"ranks": [0, 3], "hosts": ["a", "b"], "round": 2, "seconds": 0.3, "rank_0": 1}]
    before = run_status.status_of(stopped)
    starts = [start | {"losses": losses, "taken_over": {"by": 1}} for start in manifest.read_starts(stopped)]
    stopped.manifest_path.write_text(json.dumps({"starts": starts, "version": 9}))
    assert run_status.status_of(stopped) == before and before.state == "stopped"
    manifest.add_start(stopped, {"job": "18", "losses": losses})
    manifest.add_stop(stopped, 2, "SIGUSR1")
    found = run_status.status_of(stopped)
    assert (found.state, found.job, found.starts) == ("stopped", "18", 2)
    assert manifest.read_starts(stopped)[-1]["losses"] == losses
    stopped.lock_path.write_text(json.dumps(Holder.this_process("18").__dict__))
    assert run_status.status_of(stopped).state == "running"
    records = stopped.records_path.read_text().splitlines()
    records = [json.dumps(json.loads(line) | {"losses": losses, "ranks_left": 3}) + "\n" for line in records]
    stopped.records_path.write_text("".join(records))
    stopped.lock_path.unlink()
    assert run_status.status_of(stopped).accuracy == before.accuracy


def test_a_run_under_way(stopped: RunDir) -> None:
    with RunLock(stopped):
        assert run_status.status_of(stopped).state == "running"
    assert run_status.status_of(stopped).state == "stopped"


def test_a_run_whose_job_went_back(stopped: RunDir) -> None:
    """Said by slurm/life_cycle.sh, not where a later start says otherwise; submitted again it is queued."""
    stopped.requeued_path.write_text("18\n")
    assert run_status.status_of(stopped).state == "requeued"
    stopped.submission_path.write_text(json.dumps({"job": "19", "starts": 1}))
    assert run_status.status_of(stopped).state == "queued"
    stopped.submission_path.unlink()
    manifest.add_start(stopped, {"job": "20"})
    os.utime(stopped.requeued_path, ns=(0, stopped.manifest_path.stat().st_mtime_ns - 1))
    assert run_status.status_of(stopped).state == "interrupted"
    stopped.manifest_path.unlink()
    assert run_status.status_of(stopped).state == "requeued"


def test_a_run_on_another_host(stopped: RunDir) -> None:
    """Believed to run for ten minutes after its last sign of life, or three of its longest rounds."""
    note = json.dumps({"host": "node7", "pid": 1, "start": "", "job": "18"})
    now_s = stopped.lock_path.stat().st_mtime

    def state(silent_s: float) -> str:
        stopped.lock_path.write_text(note)
        os.utime(stopped.lock_path, (now_s - silent_s, now_s - silent_s))
        return run_status.status_of(stopped).state

    assert [state(STALE_AFTER_S - 60), state(STALE_AFTER_S + 60)] == ["running", "silent"]
    record = {"round": 3, "seconds": {"wall": 400.0}}
    with stopped.records_path.open("a") as file:
        file.write(json.dumps(record) + "\n")
    assert [state(1100), state(1300)] == ["running", "silent"]


def test_status_of_a_folder(stopped: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """All runs below it, or the one that it is; a damaged run is a line, too."""
    (stopped.path.parent / "deep" / "b").mkdir(parents=True)
    (stopped.path.parent / "deep" / "b" / "config.yaml").write_text("nonsense: [")
    code, out, _ = called(capsys, "status", stopped.path.parent)
    assert code == 0
    lines = [line.split()[:2] for line in out.splitlines() if "/" in line]
    assert lines == [["a", "stopped"], ["deep/b", "interrupted"]]
    assert out.splitlines()[-1] == "1 stopped, 1 interrupted"
    assert "2/3" in called(capsys, "status", stopped.path)[1]
    assert called(capsys, "status", stopped.path / "checkpoints")[1] == "no runs there\n"
    assert "is no folder" in called(capsys, "status", stopped.path / "gone")[2]
    assert called(capsys, "status")[0] == 2


@pytest.mark.parametrize(
    "line", ['{"round": 1, "tiers": [1]}', '{"round": 1, "seconds": {"wall": "x"}}', '{"round": 1, "seconds": 5}', None]
)
def test_an_unreadable_run_does_not_hide_the_others(
    stopped: RunDir, line: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = RunDir(stopped.path.parent / "A")  # comes first
    bad.path.mkdir()
    bad.config_path.write_text("rounds: 3\n")
    bad.records_path.write_text(f"{line}\n") if line else bad.records_path.mkdir()
    code, out, errors = called(capsys, "status", stopped.path.parent)
    assert code == 0 and out.splitlines()[-1] == "1 unreadable, 1 stopped"
    assert errors.startswith(f"unreadable: {bad.path}") and errors.count("\n") == 1

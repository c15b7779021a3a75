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
KNOWN_END = {**JOB, "SLURM_JOB_END_TIME": "1893456000"}
# The task that an array starts last has the array's own number.
TASK = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}


def start(folder: Path, script: str, environment: dict[str, str], scontrol: int = 0) -> subprocess.Popen[str]:
    """bash on `script` after the life cycle; Slurm's commands append themselves to `folder`/calls.

    A requeue that succeeds ends the job's shell, as Slurm does.
    """
    requeue = f"exit {scontrol}" if scontrol else "kill -TERM $PPID"
    for name, answer in (("scontrol", requeue), ("squeue", "echo 2030-01-01T00:00:00")):
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
    found, out, calls = ended(tmp_path, f"resumable {command}", {**KNOWN_END, **more}, scontrol)
    assert found == code and len(calls) == scontrol
    said = {0: "", 75: "not requeued: submit it again to go on (exit code 75)\n"}
    assert out == said.get(code, f"ended with code {code}; submitted again, it goes on from what is saved\n")


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


@pytest.mark.parametrize(("ends", "code"), [("exit 1", 0), ("kill -USR1 $$", 0), ("exit 2", 2), ("exit 3", 3)])
def test_a_signal_before_the_ranks_listen(tmp_path: Path, ends: str, code: int) -> None:
    """It kills some of them, and the others give up (1), or mpirun itself (138): to be requeued. A mistake is none."""
    rank = tmp_path / "rank"
    rank.write_text(f"trap '' USR1; kill -USR1 $PPID; sleep 0.3; trap - USR1; {ends}\n")
    found, out, calls = ended(tmp_path, f"resumable bash {rank}", KNOWN_END)
    assert found == code and calls == ["scontrol requeue 17"] * (code == 0)
    assert ("requeued: job 17" in out) == (code == 0)


ULFM = [
    ("--with-ft ulfm --run-dir '{}'", {}),
    ("--with-ft=ulfm '--run-dir={}'", {}),
    ("--run-dir '{}'", {"OMPI_MCA_mpi_ft_enable": "1"}),
    ("--run-dir '{}'", {"OMPI_MCA_mpi_ft_enable": "True"}),
]


@pytest.mark.parametrize(
    ("report", "signals", "code"), [("new", False, 0), ("old", False, 1), ("none", False, 1), ("old", True, 75)]
)
@pytest.mark.parametrize(("words", "more"), ULFM)
def test_zero_is_not_believed_where_ranks_may_die(
    tmp_path: Path, report: str, signals: bool, code: int, words: str, more: dict[str, str]
) -> None:
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
    environment = {**KNOWN_END, "FEDMPI_REQUEUE": "no", **more}
    words = words.format(summary.parents[1])
    found, out, _ = ended(tmp_path, f"cd {tmp_path}; resumable {launcher} {words} --resume", environment)
    assert (found, "is not finished" in out) == (code, code != 0)
    assert not list(tmp_path.glob(".begun*"))


@pytest.mark.parametrize(("word", "more"), [("--with-ft=ulfm", {}), ("", {"OMPI_MCA_mpi_ft_enable": "true"})])
def test_ranks_may_die_only_where_the_run_is_known(tmp_path: Path, word: str, more: dict[str, str]) -> None:
    """Its report is what tells whether it is finished."""
    found, out, calls = ended(tmp_path, f"resumable touch {tmp_path}/started {word}", {**KNOWN_END, **more})
    assert (found, calls) == (2, []) and "needs a --run-dir" in out and out.count("\n") == 1
    assert not (tmp_path / "started").exists()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run that was begun, and has saved nothing yet."""
    folder = tmp_path / "run dir"
    (folder / "checkpoints").mkdir(parents=True)
    return folder


def stops(tmp_path: Path, run_dir: Path, more: dict[str, str], does: str = "true") -> tuple[int, str, list[str]]:
    """A command that `does` something in the checkpoints' folder, and is to go on."""
    script = f"cd '{tmp_path}'; resumable sh -c 'cd \"$1/checkpoints\"; {does}; exit 75' --run-dir '{run_dir}' --resume"
    return ended(tmp_path, script, {**KNOWN_END, **more})


@pytest.mark.parametrize(
    ("before", "does", "restarts", "said"),
    [
        (False, "true", "", "requeued: job 17 begins again\n"),
        (False, "true", "4", "requeued: job 17 begins again\n"),
        (True, "true", "4", "requeued: job 17 goes on from what is saved\n"),
        (True, "touch round-000002.h5", "5", "requeued: job 17 goes on from what is saved\n"),
        (False, "true", "5", "not requeued (start 6 of this job, and nothing was saved in it: it may need more time)"),
        (True, "true", "9", "not requeued (start 10 of this job, and nothing was saved in it: it may need more time)"),
    ],
)
def test_requeueing_does_not_go_round_in_circles(
    tmp_path: Path, run_dir: Path, before: bool, does: str, restarts: str, said: str
) -> None:
    """A start that saved nothing counts; in the end it is said how to go on."""
    if before:
        (run_dir / "checkpoints" / "round-000001.h5").touch()
        os.utime(run_dir / "checkpoints" / "round-000001.h5", (0, 0))
    code, out, _ = stops(tmp_path, run_dir, {"SLURM_RESTART_COUNT": restarts} if restarts else {}, does)
    is_requeued = said.startswith("requeued")
    assert code == (0 if is_requeued else 75) and out.count("\n") == 1
    assert out == said if is_requeued else out == f"{said}: submit it again to go on (exit code 75)\n"


def test_a_requeue_is_noted_in_the_run_directory(tmp_path: Path, run_dir: Path) -> None:
    """Until the next start begins; not where it is refused or forbidden, nor for a run that has no directory yet."""
    note = run_dir / "requeued"
    assert stops(tmp_path, run_dir, TASK)[0] == 0 and note.read_text() == "17_3\n"
    found, out, _ = stops(tmp_path, run_dir, {"FEDMPI_REQUEUE": "no"}, "test ! -e ../requeued && echo gone")
    assert found == 75 and out.startswith("gone\n") and not note.exists()
    script = f"cd {tmp_path}; resumable sh -c 'exit 75' --run-dir"
    assert ended(tmp_path, f"{script} '{run_dir}'", KNOWN_END, scontrol=1)[0] == 75 and not note.exists()
    assert ended(tmp_path, f"{script} {tmp_path}/new", KNOWN_END)[:2] == (0, "requeued: job 17 begins again\n")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("code", "says"), [(75, "submit it again{} to"), (3, "submitted again{} it begins again")])
def test_a_new_job_has_another_number(tmp_path: Path, code: int, says: str) -> None:
    """So where the folder's name has this one's, it must be said which folder to go on with."""
    script = f"cd {tmp_path}; resumable sh -c 'exit {code}' --run-dir runs/me-17"
    out = ended(tmp_path, script, KNOWN_END, scontrol=1)[1]
    assert says.format(", with --run-dir runs/me-17 in its file,") in out and out.count("\n") == 1


@pytest.mark.parametrize(("task", "code"), [("3", 0), ("4", 1)])
def test_a_task_beyond_the_list_of_configs(tmp_path: Path, task: str, code: int) -> None:
    """Ends before anything is started: no config would be the default one."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    (tmp_path / "slurm").symlink_to(LIFE_CYCLE.parent)
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho \"$@\"\n")
    (tmp_path / "mpirun").chmod(0o755)
    words = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": task, "SLURM_NTASKS": "3"}
    file = "slurm/sweep_array.sbatch"
    done = subprocess.run(["bash", file], env=words, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == code and ("heterofl_digits.yaml seed=1" in done.stdout) == (code == 0)
    assert len(done.stderr.splitlines()) == code and ("no config" in done.stderr) == (code != 0)

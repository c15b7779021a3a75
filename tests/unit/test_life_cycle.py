"""`slurm/life_cycle.sh` in bash, with commands of Slurm that only note how they were called."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fedmpi.store.run_dir import RunDir

LIFE_CYCLE = Path(__file__).resolve().parents[2] / "slurm" / "life_cycle.sh"
HANGS_S = 300
JOB = {"SLURM_JOB_ID": "17"}
KNOWN_END = {**JOB, "SLURM_JOB_END_TIME": "1893456000"}
# The task that an array starts last has the array's own number.
TASK = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
# A rank that a signal, which has come through the shell, does nothing to.
IS_DEAF = "trap 'came=yes' USR1; kill -USR1 $PPID; until [ \"$came\" ]; do sleep 0.01; done"
NOT_REQUEUED = "not requeued: submit it again to continue (exit code 75)\n"
REQUEUED = "requeueing job 17, which continues from what is saved\n"
UNFINISHED = "the command ended with 0, but its run is not finished\n"


def write_command(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def start(
    folder: Path, script: str, environment: dict[str, str], scontrol: int = 0, squeue: str = "echo 2030-01-01T00:00:00"
) -> subprocess.Popen[str]:
    """bash on `script` after the life cycle; `folder`/calls and `folder`/asked have the words of Slurm's commands.

    A requeue that succeeds ends the job's shell, as Slurm does.
    """
    requeue = f"exit {scontrol}" if scontrol else "kill -TERM $PPID"
    write_command(folder / "scontrol", f'echo scontrol "$@" >> {folder}/calls\n{requeue}')
    write_command(folder / "squeue", f'echo squeue "$@" >> {folder}/asked\n{squeue}')
    words = {"PATH": f"{folder}:{os.environ['PATH']}", "TZ": "UTC", **environment}
    command = ["bash", "-c", f"source {LIFE_CYCLE}\n{script}"]
    return subprocess.Popen(command, env=words, cwd=folder, stdout=subprocess.PIPE, text=True)


def ended(folder: Path, script: str, environment: dict[str, str], **slurm: Any) -> tuple[int, str, list[str]]:
    """Exit code, output, and the words of scontrol. A requeued job ends by SIGTERM, or with 0 just before."""
    process = start(folder, script, environment, **slurm)
    out, _ = process.communicate(timeout=HANGS_S)
    calls = folder / "calls"
    code = 0 if process.returncode == -signal.SIGTERM else process.returncode
    return code, out, calls.read_text().splitlines() if calls.exists() else []


def rank_that(folder: Path, script: str) -> str:
    """A command that runs `script`; `sleeps N` in it are N times 0.05 s, in which bash hears signals."""
    sleeps = re.sub(r"sleeps (\d+)", r"for i in $(seq \1); do sleep 0.05; done", script)
    (folder / "rank").write_text(f"{sleeps}\n")
    return f"bash {folder}/rank"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run that was begun, and has saved nothing yet."""
    folder = tmp_path / "run dir"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "report").mkdir()
    return folder


@pytest.mark.parametrize(("environment", "job"), [(JOB, "17"), (TASK, "17_3")])
def test_a_job_goes_back_by_itself_alone(tmp_path: Path, environment: dict[str, str], job: str) -> None:
    """Not with all other tasks of its array; and its own end is what it asks for."""
    script = 'resumable new sh -c "echo $SLURM_JOB_END_TIME; exit 75"'
    code, out, calls = ended(tmp_path, script, environment)
    assert (code, calls) == (0, [f"scontrol requeue {job}"])
    assert out == f"1893456000\nrequeueing job {job}, which continues from what is saved\n"
    assert (tmp_path / "asked").read_text() == f"squeue --noheader --jobs {job} --format %e\n"
    assert (tmp_path / "new" / "requeued").read_text() == f"{job} 1\n" and not RunDir(tmp_path / "new").holds_run()


@pytest.mark.parametrize("stale", ["", "5"])
@pytest.mark.parametrize(
    ("answer", "end"),
    [("echo 2030-01-01T00:00:00", "1893456000")]
    + [(f"echo {word}", "") for word in ("N/A", "NONE", "Unknown")]
    + [(answer, "stale") for answer in ("exit 1", "true", "kill -9 $$")],
)
def test_squeue_knows_the_end_of_the_job(tmp_path: Path, answer: str, end: str, stale: str) -> None:
    """A job that was submitted within another one may have that one's end; where there is no answer, it stays."""
    environment = {**JOB, **({"SLURM_JOB_END_TIME": stale} if stale else {})}
    script = "echo ${SLURM_JOB_END_TIME-none}"
    _, out, _ = ended(tmp_path, script, environment, squeue=answer)
    assert out == (f"{stale if end == 'stale' else end}" or "none") + "\n"


def test_what_users_set_for_squeue_does_not_bend_its_answer(tmp_path: Path) -> None:
    """It would hide the job, or print the time in another way; the job's own commands keep it."""
    mine = {"SQUEUE_STATES": "PD", "SQUEUE_FORMAT": "%i", "SLURM_TIME_FORMAT": "relative"}
    answer = 'env | grep -q ^SQUEUE_ && exit; [ "$SLURM_TIME_FORMAT" = standard ] && echo 2030-01-01T00:00:00'
    script = "echo $SLURM_JOB_END_TIME $SQUEUE_STATES $SLURM_TIME_FORMAT"
    assert ended(tmp_path, script, {**JOB, **mine}, squeue=answer)[1] == "1893456000 PD relative\n"


@pytest.mark.parametrize(
    ("command", "more", "scontrol", "code", "said"),
    [
        ("touch report/summary.json", {}, 0, 0, ""),
        ("exit 3", {}, 0, 3, ""),
        ("exit 1", {}, 0, 1, ""),
        ("kill -9 $$", {}, 0, 137, ""),
        ("exit 75", {"FEDMPI_REQUEUE": "no"}, 0, 75, NOT_REQUEUED),
        ("exit 75", {"SLURM_JOB_ID": ""}, 0, 75, NOT_REQUEUED),
        ("exit 75", {}, 1, 75, REQUEUED + NOT_REQUEUED),
        # mpirun --with-ft ulfm, whose ranks were all killed
        ("true", {}, 0, 1, UNFINISHED),
    ],
)
def test_other_ends_are_the_job_s(
    tmp_path: Path, run_dir: Path, command: str, more: dict[str, str], scontrol: int, code: int, said: str
) -> None:
    """Finished, failed, killed; a site that forbids requeueing, said or not; no Slurm. No note stays."""
    script = f"resumable '{run_dir}' sh -c 'cd \"{run_dir}\"; {command}'"
    found, out, calls = ended(tmp_path, script, {**KNOWN_END, **more}, scontrol=scontrol)
    assert (found, out, len(calls)) == (code, said, scontrol) and not (run_dir / "requeued").exists()


def test_a_report_of_before_is_no_sign_of_the_end(tmp_path: Path, run_dir: Path) -> None:
    """Of a run that was finished, then given more rounds, whose ranks were all killed under ULFM."""
    (run_dir / "report" / "summary.json").touch()
    assert ended(tmp_path, f"resumable '{run_dir}' true", KNOWN_END)[0] == 1
    again = f"resumable '{run_dir}' touch '{run_dir}/report/summary.json'"
    assert ended(tmp_path, again, KNOWN_END)[0] == 0


@pytest.mark.parametrize(("script", "code"), [('echo "$_IS_NOT_SET"', 0), ("false; resumable new true", 1)])
def test_what_comes_before(tmp_path: Path, script: str, code: int) -> None:
    """A variable that is not set is nobody's mistake, as in the scripts of module and conda; a failure is one."""
    assert ended(tmp_path, script, JOB)[0] == code


@pytest.mark.parametrize("when", ["loading", "running"])
def test_a_signal_is_not_lost(tmp_path: Path, when: str) -> None:
    """USR1 while modules load, before there are ranks, and while they run."""
    rank = rank_that(tmp_path, f"trap 'exit 75' USR1; touch {tmp_path}/running; sleeps 600")
    loading = f"touch {tmp_path}/loading; until [ -e {tmp_path}/loaded ]; do sleep 0.05; done"
    process = start(tmp_path, f"{loading}; resumable new {rank}", JOB)
    if when == "running":
        (tmp_path / "loaded").touch()
    while not (tmp_path / when).exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)
    (tmp_path / "loaded").touch()
    assert process.communicate(timeout=HANGS_S)[0] == REQUEUED
    assert (tmp_path / "running").exists() == (when == "running")


@pytest.mark.slow
def test_a_signal_that_is_lost_comes_again(tmp_path: Path) -> None:
    """srun hears none while it makes the job's step."""
    hears = f"heard=x$heard; echo $heard >{tmp_path}/heard; [ $heard = x ] || exit 75"
    rank = rank_that(tmp_path, f"trap '{hears}' USR1; kill -USR1 $PPID; sleeps 2000; exit 9")
    assert ended(tmp_path, f"resumable new {rank}", KNOWN_END)[1] == REQUEUED
    assert (tmp_path / "heard").read_text() == "xx\n"


@pytest.mark.slow
@pytest.mark.parametrize(("ends", "code"), [("exit 1", 0), ("exit 0", 0), ("kill -USR1 $$", 0), ("exit 2", 2)])
def test_a_signal_before_the_ranks_listen(tmp_path: Path, ends: str, code: int) -> None:
    """It kills some of them, and the others give up (1), all of them under ULFM (0), or mpirun itself (138): to be
    requeued. A mistake is none."""
    rank = rank_that(tmp_path, f"{IS_DEAF}; trap - USR1; {ends}")
    found, out, calls = ended(tmp_path, f"resumable new {rank}", KNOWN_END)
    assert found == code and calls == ["scontrol requeue 17"] * (code == 0)
    assert out.removeprefix(UNFINISHED) == REQUEUED * (code == 0)


@pytest.mark.parametrize(
    ("before", "does", "noted", "note"),
    [
        (False, "true", "", "17 1"),
        (True, "true", "17 4", "17 5"),
        (True, "touch round-000002.h5", "17 5", "17 0"),
        (True, "touch round-000001.h5", "17 5", "17 0"),
        (False, "true", "16 5", "17 1"),
        (False, "true", "17 x[$(touch bad)]", "17 1"),
        (False, "true", "17 5", None),
        (True, "true", "17 5", None),
    ],
)
def test_requeueing_does_not_go_round_in_circles(
    tmp_path: Path, run_dir: Path, before: bool, does: str, noted: str, note: str | None
) -> None:
    """Starts of this job in a row that saved nothing count; the sixth is the last."""
    if before:
        (run_dir / "checkpoints" / "round-000001.h5").touch()
        os.utime(run_dir / "checkpoints" / "round-000001.h5", (0, 0))
    (run_dir / "requeued").write_text(f"{noted}\n")
    script = f"resumable '{run_dir}' sh -c 'cd \"{run_dir}/checkpoints\"; {does}; exit 75'"
    code, out, _ = ended(tmp_path, script, KNOWN_END)
    if note is not None:
        assert (code, out, (run_dir / "requeued").read_text()) == (0, REQUEUED, f"{note}\n")
        return
    assert code == 75 and not (run_dir / "requeued").exists()
    assert out == NOT_REQUEUED.replace(":", " (6 starts in a row saved nothing: the job may need more time):", 1)


def test_no_requeue_without_its_note(tmp_path: Path, run_dir: Path) -> None:
    """On a full disk (here: files may have no bytes), where starts that save nothing would not be counted."""
    script = f"trap '' XFSZ; ulimit -f 0; resumable '{run_dir}' sh -c 'exit 75'"
    assert ended(tmp_path, script, KNOWN_END) == (75, NOT_REQUEUED, [])

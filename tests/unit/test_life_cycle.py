"""`slurm/life_cycle.sh` in bash, with commands of Slurm that only note how they were called."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from golden_file import Told

from fedmpi.store.run_dir import RunDir

LIFE_CYCLE = Path(__file__).resolve().parents[2] / "slurm" / "life_cycle.sh"
HANGS_S = 300
JOB = {"SLURM_JOB_ID": "17"}
KNOWN_END = {**JOB, "SLURM_JOB_END_TIME": "1893456000"}
# A rank that a signal, which has come through the shell, does nothing to.
IS_DEAF = "trap 'came=yes' USR1; kill -USR1 $PPID; until [ \"$came\" ]; do sleep 0.01; done"
# The task that an array starts last has the array's own number.
TASK = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}


def write_command(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def start(
    folder: Path, script: str, environment: dict[str, str], scontrol: int = 0, squeue: str = "echo 2030-01-01T00:00:00"
) -> subprocess.Popen[str]:
    """bash on `script` after the life cycle; `folder`/calls and `folder`/asked have what Slurm's commands were told.

    A requeue that succeeds ends the job's shell, as Slurm does.
    """
    requeue = f"exit {scontrol}" if scontrol else "kill -TERM $PPID"
    write_command(folder / "scontrol", f'echo scontrol "$@" >> {folder}/calls\n{requeue}')
    write_command(folder / "squeue", f'echo squeue "$@" >> {folder}/asked\n{squeue}')
    words = {"PATH": f"{folder}:{os.environ['PATH']}", "TZ": "UTC", **environment}
    command = ["bash", "-c", f"source {LIFE_CYCLE}\n{script}"]
    return subprocess.Popen(command, env=words, stdout=subprocess.PIPE, text=True)


def ended(
    folder: Path, script: str, environment: dict[str, str], scontrol: int = 0, **more: str
) -> tuple[int, str, list[str]]:
    """Exit code, output, and what Slurm was asked to do."""
    process, calls = start(folder, script, environment, scontrol, **more), folder / "calls"
    out, _ = process.communicate(timeout=HANGS_S)
    return process.returncode, out, calls.read_text().splitlines() if calls.exists() else []


def rank_that(folder: Path, script: str) -> str:
    """A command that runs `script`; `sleeps N` in it are N times 0.05 s, in which bash hears signals."""
    sleeps = re.sub(r"sleeps (\d+)", r"for i in $(seq \1); do sleep 0.05; done", script)
    (folder / "rank").write_text(f"{sleeps}\n")
    return f"bash {folder}/rank"


@pytest.mark.parametrize(("environment", "job"), [(JOB, "17"), (TASK, "17_3")])
def test_a_job_goes_back_by_itself_alone(tmp_path: Path, environment: dict[str, str], job: str, told: Told) -> None:
    """Not with all other tasks of its array; and its own end is what it asks for."""
    code, out, calls = ended(tmp_path, 'resumable sh -c "echo $SLURM_JOB_END_TIME; exit 75"', environment)
    assert (code, calls) == (0, [f"scontrol requeue {job}"])
    told(out)
    assert (tmp_path / "asked").read_text() == f"squeue --noheader --jobs {job} --format %e\n"


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
    script = 'resumable sh -c "echo ${SLURM_JOB_END_TIME-none}"'
    _, out, _ = ended(tmp_path, script, environment, squeue=answer)
    assert out == (f"{stale if end == 'stale' else end}" or "none") + "\n"


def test_what_users_set_for_squeue_does_not_bend_its_answer(tmp_path: Path) -> None:
    """It would hide the job, or print the time in another way; the job's own commands keep what was set."""
    mine = {"SQUEUE_STATES": "PD", "SQUEUE_FORMAT": "%i", "SLURM_TIME_FORMAT": "relative"}
    answer = 'env | grep -q ^SQUEUE_ && exit; [ "$SLURM_TIME_FORMAT" = standard ] && echo 2030-01-01T00:00:00'
    script = 'resumable sh -c "echo $SLURM_JOB_END_TIME $SQUEUE_STATES $SLURM_TIME_FORMAT"'
    assert ended(tmp_path, script, {**JOB, **mine}, squeue=answer)[1] == "1893456000 PD relative\n"


@pytest.mark.parametrize(
    ("command", "more", "scontrol", "code"),
    [
        ("true", {}, 0, 0),
        ("sh -c 'exit 3'", {}, 0, 3),
        ("sh -c 'exit 75'", {"FEDMPI_REQUEUE": "no"}, 0, 75),
        ("sh -c 'exit 75'", {}, 1, 75),
        ("sh -c 'kill -9 $$'", {}, 0, 137),
    ],
)
def test_other_ends_are_the_job_s(
    tmp_path: Path, command: str, more: dict[str, str], scontrol: int, code: int, told: Told
) -> None:
    """Finished, failed, killed; a site that forbids requeueing, said or not."""
    found, out, calls = ended(tmp_path, f"resumable {command}", {**KNOWN_END, **more}, scontrol)
    assert (found, len(calls)) == (code, scontrol) and not list(tmp_path.rglob(".begun*"))
    told(out)


@pytest.mark.parametrize(("script", "code"), [('echo "$_IS_NOT_SET"; resumable true', 0), ("false; resumable true", 1)])
def test_what_comes_before(tmp_path: Path, script: str, code: int) -> None:
    """A variable that is not set is nobody's mistake, as in the scripts of module and conda; a failure is one."""
    assert ended(tmp_path, script, JOB)[0] == code


@pytest.mark.parametrize("when", ["loading", "running"])
def test_a_signal_is_not_lost(tmp_path: Path, when: str) -> None:
    """USR1 while modules load, before there are ranks, and while they run."""
    rank = rank_that(tmp_path, f"trap 'exit 75' USR1; touch {tmp_path}/running; sleeps 600")
    loading = f"touch {tmp_path}/loading; until [ -e {tmp_path}/loaded ]; do sleep 0.05; done"
    process = start(tmp_path, f"{loading}; resumable {rank}", JOB)
    if when == "running":
        (tmp_path / "loaded").touch()
    while not (tmp_path / when).exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)
    (tmp_path / "loaded").touch()
    out, _ = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0 and "requeued: job 17 continues" in out


def test_a_signal_that_is_lost_comes_again(tmp_path: Path, told: Told) -> None:
    """srun hears none while it makes the job's step; what the command ends with counts all the same. Seconds of the
    life cycle wait here until the rank has heard a signal (two that are pending are one), the third for its end."""
    hears = f"heard=x$heard; echo >{tmp_path}/heard; [ $heard = x ] || exit 75"
    rank = rank_that(tmp_path, f"trap '{hears}' USR1; echo $$ >{tmp_path}/pid; kill -USR1 $PPID; sleeps 2000; exit 9")
    lives, wait = f"kill -0 $(cat {tmp_path}/pid) 2>/dev/null", "do /bin/sleep 0.01; done"
    step = f"echo >>{tmp_path}/steps; while [ ! -e {tmp_path}/heard ] && {lives}; {wait}"
    third = f"[ $(wc -l <{tmp_path}/steps) -lt 3 ] || while {lives}; {wait}"
    write_command(tmp_path / "sleep", f'[ "$1" = 1 ] || exec /bin/sleep "$@"\n{step}\n{third}')
    code, out, calls = ended(tmp_path, f"again_s=2; resumable {rank}", KNOWN_END)
    assert (code, calls) == (0, ["scontrol requeue 17"])
    assert (tmp_path / "steps").read_text().count("\n") in (2, 3)  # again_s is 2; by itself it is 10
    told(out)


def test_every_command_of_a_file_hears_the_signal(tmp_path: Path, told: Told) -> None:
    """And after a command that ended with 0, SIGTERM ends the shell as before."""
    rank = rank_that(tmp_path, "trap 'exit 75' USR1; kill -USR1 $PPID; sleeps 2000")
    code, out, _ = ended(tmp_path, f"resumable true; again_s=100; resumable {rank}", KNOWN_END)
    assert code == 0
    told(out)
    assert ended(tmp_path, "resumable true; kill -TERM $$; echo still here", KNOWN_END)[:2] == (-signal.SIGTERM, "")


@pytest.mark.parametrize(("ends", "code"), [("exit 1", 0), ("kill -USR1 $$", 0), ("exit 2", 2), ("exit 3", 3)])
def test_a_signal_before_the_ranks_listen(tmp_path: Path, ends: str, code: int) -> None:
    """It kills some of them, and the others give up (1), or mpirun itself (138): to be requeued. A mistake is none."""
    rank = rank_that(tmp_path, f"{IS_DEAF}; trap - USR1; {ends}")
    found, out, calls = ended(tmp_path, f"resumable {rank}", KNOWN_END)
    assert found == code and calls == ["scontrol requeue 17"] * (code == 0)
    assert ("requeued: job 17" in out, "code 2: fix" in out) == (code == 0, code == 2)


@pytest.mark.parametrize(
    ("report", "signals", "code"), [("new", False, 0), ("old", False, 1), ("none", False, 1), ("old", True, 75)]
)
@pytest.mark.parametrize("words", ["--with-ft ulfm --run-dir '{}'", "--with-ft=ulfm '--run-dir={}'", "--run-dir '{}'"])
def test_zero_is_not_believed_where_ranks_may_die(
    tmp_path: Path, report: str, signals: bool, code: int, words: str
) -> None:
    """With `--with-ft`, mpirun ends with 0 even if all ranks were killed: by an early signal, or one by one."""
    summary = tmp_path / "run dir" / "report" / "summary.json"
    summary.parent.mkdir(parents=True)
    if report == "old":
        summary.touch()
        os.utime(summary, (0, 0))
    write = f"touch '{summary}'" if report == "new" else "true"
    rank = rank_that(tmp_path, f"{write}; {IS_DEAF if signals else 'true'}; exit 0")
    environment = {**KNOWN_END, "FEDMPI_REQUEUE": "no", "OMPI_MCA_mpi_ft_enable": "" if "ulfm" in words else "True"}
    words = words.format(summary.parents[1])
    found, out, _ = ended(tmp_path, f"cd {tmp_path}; resumable {rank} {words} --resume", environment)
    assert (found, "is not finished" in out, [*tmp_path.rglob(".begun*")]) == (code, code != 0, [])


@pytest.mark.parametrize(("word", "variable"), [("--with-ft=ulfm", ""), ("", "true"), ("", "1")])
def test_ranks_may_die_only_where_the_run_is_known(tmp_path: Path, word: str, variable: str) -> None:
    """Its report is what tells whether it is finished."""
    environment = {**KNOWN_END, "OMPI_MCA_mpi_ft_enable": variable}
    found, out, calls = ended(tmp_path, f"resumable touch {tmp_path}/started {word}", environment)
    assert (found, calls, out.count("\n"), (tmp_path / "started").exists()) == (2, [], 1, False)
    assert "needs a --run-dir" in out


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run that was begun, and has saved nothing yet."""
    folder = tmp_path / "run dir"
    (folder / "checkpoints").mkdir(parents=True)
    return folder


def stops(tmp_path: Path, run_dir: Path, more: dict[str, str], does: str = "true") -> tuple[int, str, list[str]]:
    """A command that `does` something in the checkpoints' folder, and is to continue."""
    script = f"cd '{tmp_path}'; resumable sh -c 'cd \"$1/checkpoints\"; {does}; exit 75' --run-dir '{run_dir}' --resume"
    return ended(tmp_path, script, {**KNOWN_END, **more})


@pytest.mark.parametrize(
    ("before", "does", "noted", "note"),
    [
        (False, "true", "", "17 1"),
        (False, "true", "17 4", "17 5"),
        (True, "true", "17 4", "17 5"),
        (True, "touch round-000002.h5", "17 5", "17 0"),
        (False, "true", "16 5", "17 1"),
        (False, "true", "17 x[$(touch bad)]", "17 1"),
        (False, "true", "17 5", None),
        (True, "true", "17 5", None),
    ],
)
def test_requeueing_does_not_go_round_in_circles(
    tmp_path: Path, run_dir: Path, before: bool, does: str, noted: str, note: str | None, told: Told
) -> None:
    """Starts of this job in a row that saved nothing count; in the end it is said how to continue."""
    if before:
        (run_dir / "checkpoints" / "round-000001.h5").touch()
        os.utime(run_dir / "checkpoints" / "round-000001.h5", (0, 0))
    if noted:
        (run_dir / "requeued").write_text(f"{noted}\n")
    code, out, _ = stops(tmp_path, run_dir, {}, does)
    told(out)
    left = [path.read_text() for path in run_dir.glob("requeued")]
    assert (code, left) == ((75, []) if note is None else (0, [f"{note}\n"]))


def test_starts_are_counted_from_requeue_to_requeue(tmp_path: Path) -> None:
    """Also of a run that has no directory yet: it gets one, for the note."""
    new = tmp_path / "deep" / "new"
    script = f"cd {tmp_path}; resumable sh -c 'exit 75' --run-dir {new}"
    for count in range(1, 6):
        assert ended(tmp_path, script, KNOWN_END)[:2] == (0, "requeued: job 17 begins again\n")
        assert (new / "requeued").read_text() == f"17 {count}\n" and not RunDir(new).holds_run()
    code, out, _ = ended(tmp_path, script, KNOWN_END)
    assert code == 75 and "(6 starts in a" in out and [*new.iterdir()] == []


def test_a_requeue_is_noted_in_the_run_directory(tmp_path: Path, run_dir: Path) -> None:
    """Until the end of a start that is not requeued, because that is refused or forbidden; .begun while it runs."""
    note = run_dir / "requeued"
    assert stops(tmp_path, run_dir, TASK)[0] == 0 and note.read_text() == "17_3 1\n"
    looks = "test -e ../requeued && test -e ../.begun-17_3 && echo there"
    found, out, _ = stops(tmp_path, run_dir, {**TASK, "FEDMPI_REQUEUE": "no"}, looks)
    assert found == 75 and out.startswith("there\n") and not note.exists()
    note.write_text("17 1\n")
    script = f"cd {tmp_path}; resumable sh -c 'exit 75' --run-dir"
    assert ended(tmp_path, f"{script} '{run_dir}'", KNOWN_END, scontrol=1)[0] == 75 and not note.exists()
    assert [path.name for path in run_dir.iterdir()] == ["checkpoints"]


def test_a_second_job_leaves_the_first_one_s_files_alone(tmp_path: Path, run_dir: Path) -> None:
    """While the first waits in the queue, or runs; each has a file of its own for when it began."""
    note, begun = run_dir / "requeued", run_dir / ".begun-16"
    note.write_text("16 2\n")
    begun.touch()
    os.utime(begun, (0, 0))
    for refused in (KNOWN_END, TASK, {}):
        script = f"cd {tmp_path}; resumable sh -c 'exit 2' --run-dir '{run_dir}'"
        assert ended(tmp_path, script, refused)[0] == 2
        assert note.read_text() == "16 2\n" and begun.stat().st_mtime == 0
        assert {path.name for path in run_dir.iterdir()} == {"checkpoints", "requeued", ".begun-16"}
    looks = "ls -A .. | grep begun"
    names = [stops(tmp_path, run_dir, more, looks)[1].splitlines()[1] for more in ({}, TASK)]
    assert names == [".begun-17", ".begun-17_3"]


@pytest.mark.parametrize("shape", ["link", "pipe", "device", "folder"])
def test_what_others_plant_is_neither_followed_nor_waited_for(tmp_path: Path, run_dir: Path, shape: str) -> None:
    """Under every name that the script uses and that somebody can know."""
    victim = tmp_path / "victim"
    victim.write_text("17 4\n")
    for name in ("requeued", "requeued.17", ".begun-17"):
        place = run_dir / name
        if shape == "pipe":
            os.mkfifo(place)
        elif shape == "folder":
            (tmp_path / "folder").mkdir(exist_ok=True)
            place.symlink_to(tmp_path / "folder")
        else:
            place.symlink_to(victim if shape == "link" else "/dev/zero")
    assert stops(tmp_path, run_dir, {})[0] == 0
    assert victim.read_text() == "17 4\n" and not any((tmp_path / "folder").glob("*"))
    note = run_dir / "requeued"
    assert not note.is_symlink() and note.read_text() == f"17 {5 if shape == 'link' else 1}\n"


@pytest.mark.parametrize("before", ["", "17 3\n"])
def test_no_requeue_without_its_note(tmp_path: Path, run_dir: Path, before: str) -> None:
    """On a full disk (here: files may have no bytes), where starts that save nothing would not be counted."""
    note = run_dir / "requeued"
    if before:
        note.write_text(before)
    script = f"trap '' XFSZ; ulimit -f 0; resumable sh -c 'exit 75' --run-dir '{run_dir}'"
    code, out, _ = ended(tmp_path, f"cd {tmp_path}; {script}", KNOWN_END)
    said = f"not requeued ({note} cannot be written: File too large): submit it again to continue (exit code 75)\n"
    assert (code, out) == (75, said)
    assert [path.name for path in run_dir.iterdir()] == ["checkpoints"]


def test_a_note_is_whole_or_as_it_was(tmp_path: Path, run_dir: Path) -> None:
    """Also for one who reads while it is written: the name is given to a file that is complete."""
    (run_dir / "requeued").write_text("17 3\n")
    write_command(tmp_path / "mv", f'cp "{run_dir}/requeued" {tmp_path}/before; exec /bin/mv "$@"')
    assert stops(tmp_path, run_dir, {})[0] == 0
    assert [path.read_text() for path in (tmp_path / "before", run_dir / "requeued")] == ["17 3\n", "17 4\n"]


def test_without_slurm_nothing_is_requeued(tmp_path: Path, run_dir: Path, told: Told) -> None:
    """A file that is tried in a shell of one's own."""
    script = f"cd {tmp_path}; resumable sh -c 'exit 75' --run-dir '{run_dir}'"
    code, out, calls = ended(tmp_path, script, {})
    assert (code, calls) == (75, [])
    told(out)
    assert not (tmp_path / "asked").exists() and [path.name for path in run_dir.iterdir()] == ["checkpoints"]


def test_a_folder_is_left_only_for_a_reason(tmp_path: Path, told: Told) -> None:
    """None for a command that refused to begin; one with .begun-17 alone, of a shell that was killed, holds no run."""
    new = tmp_path / "new"
    says = f"test -e {new}/.begun-17 && echo begun; exit 2"
    code, out, _ = ended(tmp_path, f"resumable sh -c '{says}' --run-dir {new}", KNOWN_END)
    assert code == 2 and out.startswith("begun\n") and not new.exists()
    new.mkdir()
    (new / ".begun-17").touch()
    RunDir.open_for(new, resume=False)
    (new / ".begun-17").unlink()
    assert ended(tmp_path, f"resumable true --run-dir {new}", KNOWN_END)[0] == 0 and new.is_dir()
    (tmp_path / "file").touch()
    code, out, _ = ended(tmp_path, f"resumable sh -c 'exit 2' --run-dir {tmp_path}/file", KNOWN_END)
    assert code == 2
    told(out)


@pytest.mark.parametrize("code", [75, 3, 2])
def test_a_new_job_has_another_number(tmp_path: Path, code: int, told: Told) -> None:
    """So where the folder's name has this one's, it must be said which folder to continue."""
    script = f"cd {tmp_path}; resumable sh -c 'exit {code}' --run-dir runs/me-17"
    told(ended(tmp_path, script, KNOWN_END, scontrol=1)[1])

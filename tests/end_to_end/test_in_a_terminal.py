"""What a person sees who runs the command in a terminal: rounds as they end, and at Ctrl-C how to continue."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fast import fast
from in_terminal import Terminal, terminal
from launched import LIMIT_S, RunMain, command, environment, launch, unfolded
from small_runs import SMALL

from fedmpi.running import interruption
from fedmpi.store.run_dir import RunDir

ENDLESS = (*SMALL, "rounds=100000", "evaluation.every=100", "output.progress=auto", "mpi.exchange=reduce")
HIDE_CURSOR = b"\x1b[?25l"
FIRST_ROUND = re.compile(rb"round +1/100000 .*\n")
ATTEMPTS = 5
"""mpirun kills its ranks a quarter of a second after Ctrl-C: on a starved machine rank 0 may not run in that time."""


def advice(shown: bytes) -> str:
    """The command to continue, said after ^C; empty if none was."""
    after = unfolded(shown.partition(b"^C")[2].decode(errors="replace"))
    found = re.search(r"fedmpi: stopped by Ctrl-C(?: or SIGTERM)?; rounds? .* saved\r?\nto continue: (.*?)\r?\n", after)
    return found[1] if found else ""


def interrupted(shown: Terminal, times: int) -> str:
    """The advice after Ctrl-C, pressed once or more; mpirun ends with 1 whatever its ranks do."""
    assert shown.read_until(lambda text: FIRST_ROUND.search(text) is not None), shown.shown
    assert shown.process.poll() is None  # its first line came while it was running
    for _ in range(times):
        shown.press_ctrl_c()
    said = advice(shown.read_all())
    assert shown.process.wait(LIMIT_S) == 1
    return said


@pytest.mark.parametrize("times", fast(1, of=(1, 2)))
def test_under_mpirun_rounds_are_shown_as_they_end_and_ctrl_c_says_how_to_continue(
    run_main: RunMain, tmp_path: Path, times: int
) -> None:
    for attempt in range(ATTEMPTS):
        run_dir = tmp_path / str(attempt)
        with terminal(tmp_path, command(2, *ENDLESS, "--run-dir", str(run_dir))) as shown:
            again = interrupted(shown, times)
            assert HIDE_CURSOR not in shown.shown and b"\x1b[2K" not in shown.shown
        if again:
            break
    saved = RunDir(run_dir).checkpoints()[0][0]
    words = shlex.split(again)
    assert words[:6] == ["mpirun", "-n", "2", "python", "-m", "fedmpi.main"]
    code, out, errors = run_main(*words[6:], f"rounds={saved + 1}", "output.progress=plain")
    assert code == 0 and f"resuming after round {saved}" in out, errors


WITH_A_PATH = ("    /", "run directory: ")


def test_a_run_of_seven_tiers_under_mpirun_in_80_columns(tmp_path: Path) -> None:
    """Whole lines from the first moment on, none of which is changed later; with `-s` pytest shows when each came."""
    shares = ("1", "0.9", "0.75", "0.6", "0.5", "0.3", "0.2")
    seven = ("method.name=fedhm", f"method.rank_ratio=[{','.join(shares)}]", "output.progress=auto")
    words = command(2, *SMALL, *seven, "--run-dir", "r", program=("-m", "fedmpi"))
    with terminal(tmp_path, words) as shown:
        assert b"\x1b" not in shown.read_all() and shown.process.wait() == 0, shown.shown
    print(*(f"{at_s:6.2f} s  {line}" for at_s, line in shown.stamps), sep="\n")
    lines = [line for _, line in shown.stamps]
    assert [line for line in lines if len(line) > 80 and not line.startswith(WITH_A_PATH)] == []
    rounds = [f"round {number}/3" for number in (1, 2, 3)]
    wanted = ("starting 2 ranks", "rank 0: ", "run directory: ", "accuracy of 1, 0.9", *rounds)
    places = [next(place for place, line in enumerate(lines) if line.startswith(start)) for start in wanted]
    assert places[0] == 0 and places == sorted(places) and lines[-1].startswith("run directory: ")
    assert lines[places[3]] == f"accuracy of {', '.join(shares)}, in this order"
    for line in lines[places[4] : places[6] + 1]:
        assert re.fullmatch(r"round \d/3  [\d.]+ s  ETA [\d:]+  accuracy( [\d.]+){7} %", line)


@pytest.mark.parametrize("how", fast("ctrl-c", of=("ctrl-c", "SIGTERM", "failure")))
def test_a_live_line_leaves_the_cursor_visible(tmp_path: Path, how: str) -> None:
    """However the run ends: rich would hide it while the line is shown."""
    diverges = ("train.lr=1e12", "method.name=fedavg") if how == "failure" else ()
    with terminal(tmp_path, command(1, *ENDLESS, *diverges, "--run-dir", str(tmp_path / "run"))) as shown:
        if how != "failure":
            assert shown.read_until(lambda text: b"\x1b[2K" in text and bool(RunDir(tmp_path / "run").checkpoints()))
        if how == "ctrl-c":
            shown.press_ctrl_c()
        elif how == "SIGTERM":
            shown.process.send_signal(signal.SIGTERM)
        assert b"to continue" in shown.read_all() and HIDE_CURSOR not in shown.shown, shown.shown
        assert how != "ctrl-c" or advice(shown.shown)
        ended = {"ctrl-c": -signal.SIGINT, "SIGTERM": -signal.SIGTERM, "failure": 1}
        assert shown.process.wait(LIMIT_S) == ended[how]


def test_what_a_signal_is_answered_replaces_the_live_line(tmp_path: Path) -> None:
    """SIGUSR1 asks a run to stop after its round; the live line is shown again below the answer."""
    with terminal(tmp_path, command(1, *ENDLESS, "--run-dir", str(tmp_path / "run"))) as shown:
        assert shown.read_until(lambda text: b"\x1b[2K" in text)
        shown.process.send_signal(signal.SIGUSR1)
        answer = b"\r\x1b[2Kfedmpi: SIGUSR1: the run stops after this round\r\n"
        assert answer in shown.read_all() and shown.process.wait(LIMIT_S) == 75, shown.shown


@pytest.mark.parametrize("program", [("-m", "fedmpi.main"), ("-m", "fedmpi")])
def test_ctrl_c_while_a_command_loads_is_one_line(tmp_path: Path, program: tuple[str, ...]) -> None:
    """As soon as it listens to SIGTERM, which no Python does by itself."""
    loads = launch(tmp_path, [sys.executable, *program, *ENDLESS])
    status = Path(f"/proc/{loads.process.pid}/status")
    try:
        assert loads.wait_until(lambda: listens_to(signal.SIGTERM, status.read_text()))
        loads.process.send_signal(signal.SIGINT)
        assert loads.wait() == -signal.SIGINT
        assert "Ctrl-C" in loads.err and "Traceback" not in loads.err
    finally:
        loads.kill()


def listens_to(number: signal.Signals, status: str) -> bool:
    caught = re.search(r"SigCgt:\s*(\w+)", status)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


LOADS = """
import time
from fedmpi.running.interruption import end_early
end_early()
print("loads", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("rank", "number", "name"),
    [
        ("", signal.SIGINT, "Ctrl-C"),
        ("", signal.SIGTERM, "SIGTERM"),
        ("0", signal.SIGTERM, "Ctrl-C or SIGTERM"),
        ("1", signal.SIGTERM, ""),
    ],
)
def test_rank_0_says_that_nothing_has_begun(tmp_path: Path, rank: str, number: signal.Signals, name: str) -> None:
    """A launcher passes Ctrl-C on as SIGTERM; the other ranks say nothing."""
    given = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "2"} if rank else {}
    words = ["env", *(f"{key}={value}" for key, value in given.items()), sys.executable, "-c", LOADS]
    loads = launch(tmp_path, words)
    try:
        assert loads.wait_until(lambda: "loads" in loads.out)
        loads.process.send_signal(number)
        assert loads.wait() == -number
        line = f"fedmpi: stopped by {name} before anything has begun;\n  the same command starts it\n"
        assert loads.err == (line if name else "")
    finally:
        loads.kill()


GUARDED = """
import os, signal
from fedmpi.mpi.starting import at_most
from fedmpi.running.interruption import end_early
end_early()
with at_most(600.0, "too slow"):
    os.killpg(0, signal.SIGTERM)
    signal.pause()
"""


def test_a_rank_that_waits_for_mpi_says_it_once(tmp_path: Path) -> None:
    """A launcher sends the signal to all processes of a rank, also to the one that watches the start of MPI."""
    words = [sys.executable, "-c", GUARDED]
    done = subprocess.run(words, capture_output=True, text=True, start_new_session=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr.count("SIGTERM"), done.stderr.count("fedmpi:")) == (-signal.SIGTERM, 1, 1)


# As mpirun after Ctrl-C: what its rank writes to stderr goes nowhere.
DEAF_LAUNCHER = '#!/bin/sh\n"$@" 2>/dev/null &\nwait $!\n'


def test_the_last_words_reach_the_stderr_of_a_launcher_that_forwards_nothing(tmp_path: Path) -> None:
    launcher = tmp_path / "mpirun"
    launcher.write_text(DEAF_LAUNCHER)
    launcher.chmod(0o755)
    say = "from fedmpi.running.interruption import last_words; last_words('how to continue')"
    for wrapper in ([], ["sh", "-c", '"$@"; true', "sh"]):
        words = [str(launcher), *wrapper, sys.executable, "-c", say]
        own = environment() | {"OMPI_COMM_WORLD_RANK": "0"}
        done = subprocess.run(words, capture_output=True, text=True, env=own, timeout=LIMIT_S, check=True)
        assert (done.stdout, done.stderr) == ("", "how to continue\n")


def test_a_launcher_does_not_write_over_the_last_words(tmp_path: Path) -> None:
    """Into a file that is not written at its end, as the shell's `>` opens it."""
    try:
        os.close(interruption._shared_stderr(os.getpid()))
    except OSError:
        pytest.skip("this system does not let a process share another's descriptor")
    (tmp_path / "mpirun").write_text(f"{DEAF_LAUNCHER}echo the end >&2\n")
    (tmp_path / "mpirun").chmod(0o755)
    say = "from fedmpi.running.interruption import last_words; last_words('continue')"
    with (tmp_path / "log").open("w") as log:
        words, own = [str(tmp_path / "mpirun"), sys.executable, "-c", say], {"OMPI_COMM_WORLD_RANK": "0"}
        subprocess.run(words, stderr=log, env=environment() | own, timeout=LIMIT_S, check=True)
    assert (tmp_path / "log").read_text() == "continue\nthe end\n"


# The main thread is in one call for many minutes, in which it cannot handle signals.
BUSY = """
import hashlib, os
from fedmpi.running.interruption import Interruption
with Interruption(lambda number: f"stopped by {number}"):
    print("busy", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
"""


def test_the_last_words_are_said_while_the_main_thread_computes(tmp_path: Path) -> None:
    busy = launch(tmp_path, [sys.executable, "-c", BUSY])
    stat = Path(f"/proc/{busy.process.pid}/task/{busy.process.pid}/stat")

    def ticks() -> int:
        return int(stat.read_text().rpartition(")")[2].split()[11])

    try:
        assert busy.wait_until(lambda: "busy" in busy.out)
        before = ticks()
        assert busy.wait_until(lambda: ticks() > before + 20)  # so it is in that call by now
        busy.process.send_signal(signal.SIGTERM)
        assert busy.wait_until(lambda: busy.err == f"stopped by {int(signal.SIGTERM)}\n"), busy.err
        assert busy.process.poll() is None
    finally:
        busy.kill()

"""What a person sees who runs the command in a terminal: rounds as they end, and at Ctrl-C how to continue."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fast import fast
from in_terminal import terminal
from launched import LIMIT_S, RunMain, command, environment, unfolded
from small_runs import SMALL

from fedmpi.store.run_dir import RunDir

ENDLESS = (*SMALL, "rounds=100000", "output.progress=plain", "mpi.exchange=reduce")
FIRST_ROUND = re.compile(rb"round +1/100000 .*\n")


def advice(shown: bytes) -> str:
    """Returns the command to continue, printed after ^C; '' if none was."""
    after = unfolded(shown.partition(b"^C")[2].decode(errors="replace"))
    found = re.search(r"fedmpi: stopped by Ctrl-C; rounds? .* saved\r?\nto continue: (.*?)\r?\n", after)
    return found[1] if found else ""


@pytest.mark.parametrize("times", fast(of=[1, 2], slow=[2]))
def test_under_mpirun_rounds_are_shown_as_they_end_and_ctrl_c_ends_all(
    run_main: RunMain, tmp_path: Path, times: int
) -> None:
    """The command to continue is shown before: mpirun forwards nothing after Ctrl-C, and ends with 1."""
    run_dir = tmp_path / "run"
    with terminal(tmp_path, command(2, *ENDLESS, "--run-dir", str(run_dir))) as shown:
        assert shown.read_until(lambda text: FIRST_ROUND.search(text) is not None), shown.shown
        assert shown.process.poll() is None  # its first line came while it was running
        for _ in range(times):
            shown.press_ctrl_c()
        shown.read_all()
        assert shown.process.wait(LIMIT_S) == 1
    (again,) = re.findall(r"to continue after an interruption: (.*?)\r?\n", unfolded(shown.shown.decode()))
    words = shlex.split(again)
    assert words[:6] == ["mpirun", "-n", "2", "python", "-m", "fedmpi.main"]
    saved = RunDir(run_dir).checkpoints()[0][0]
    code, out, errors = run_main(*words[6:], f"rounds={saved + 1}", "output.progress=plain")
    assert code == 0 and f"resuming after round {saved}" in out, errors


WITH_A_PATH = ("  mpirun ", "run directory: ")


@pytest.mark.slow
def test_a_run_of_seven_tiers_under_mpirun_in_80_columns(tmp_path: Path) -> None:
    """Whole lines from the first moment on, none of which is changed later; with `-s` pytest shows when each came."""
    shares = ("1", "0.9", "0.75", "0.6", "0.5", "0.3", "0.2")
    seven = ("method.name=fedhm", f"method.rank_ratio=[{','.join(shares)}]", "output.progress=plain")
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


@pytest.mark.slow
def test_ctrl_c_says_how_to_continue(tmp_path: Path) -> None:
    with terminal(tmp_path, command(1, *ENDLESS, "--run-dir", str(tmp_path / "run"))) as shown:
        assert shown.read_until(lambda text: bool(RunDir(tmp_path / "run").checkpoints()))
        shown.press_ctrl_c()
        shown.read_all()
        assert advice(shown.shown) and shown.process.wait(LIMIT_S) == -signal.SIGINT


@pytest.mark.parametrize("program", [("-m", "fedmpi.main"), ("-m", "fedmpi")])
def test_ctrl_c_while_a_command_loads_leaves_no_traceback(tmp_path: Path, program: tuple[str, ...]) -> None:
    """It comes here when pydantic is loaded."""
    (tmp_path / "pydantic.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    words = [sys.executable, *program, *ENDLESS]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")

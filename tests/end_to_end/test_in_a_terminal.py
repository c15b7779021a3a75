"""What a person sees who runs the command in a terminal: rounds as they end, and at Ctrl-C how to continue."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
from launched import LIMIT_S, command, environment, unfolded
from small_runs import SMALL

from fedmpi.mpi.mpirun import files_in
from fedmpi.store.run_dir import RunDir

ENDLESS = (*SMALL, "rounds=100000", "output.progress=plain", "mpi.exchange=reduce")


@pytest.mark.slow
def test_ctrl_c_says_how_to_continue(tmp_path: Path) -> None:
    """After ^C, in a terminal of 80 columns, with what is saved."""
    own = environment() | files_in(tmp_path) | {"TERM": "xterm"}
    program, *words = command(1, *ENDLESS, "--run-dir", str(tmp_path / "run"))
    with pexpect.spawn(program, words, env=own, dimensions=(25, 80), timeout=LIMIT_S, encoding="utf-8") as shown:
        while not RunDir(tmp_path / "run").checkpoints():
            shown.expect(r"round +\d+/")
        shown.sendintr()
        after = unfolded(shown.read().partition("^C")[2])
        assert re.search(r"fedmpi: stopped by Ctrl-C; rounds? .* saved\r?\nto continue: (.+?)\r?\n", after), after
        shown.wait()
        assert shown.signalstatus == signal.SIGINT


@pytest.mark.parametrize("program", [("-m", "fedmpi.main"), ("-m", "fedmpi")])
def test_ctrl_c_while_a_command_loads_leaves_no_traceback(tmp_path: Path, program: tuple[str, ...]) -> None:
    """It comes here when pydantic is loaded."""
    (tmp_path / "pydantic.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    words = [sys.executable, *program, *ENDLESS]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")

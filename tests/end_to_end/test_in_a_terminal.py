"""What a person sees who runs the command in a terminal: rounds as they end, and at Ctrl-C how to continue."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pexpect
import pytest
from launched import LIMIT_S, RunMain, command, descendants, environment, unfolded
from small_runs import SMALL

from fedmpi.mpi.mpirun import files_in
from fedmpi.store.run_dir import RunDir

ENDLESS = (*SMALL, "rounds=100000", "output.progress=plain", "mpi.exchange=reduce")


@contextlib.contextmanager
def terminal(folder: Path, words: Sequence[str]) -> Iterator[pexpect.spawn]:
    """A command in a terminal of 80 columns, which is ended with the block."""
    own = environment() | files_in(folder) | {"TERM": "xterm"}
    text = {"encoding": "utf-8", "codec_errors": "replace"}
    program, *arguments = words
    shown = pexpect.spawn(program, arguments, cwd=folder, env=own, dimensions=(25, 80), timeout=LIMIT_S, **text)
    try:
        yield shown
    finally:
        for pid in descendants(shown.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shown.close()


@pytest.mark.slow
def test_under_mpirun_rounds_are_shown_as_they_end_and_ctrl_c_ends_all(run_main: RunMain, tmp_path: Path) -> None:
    """Pressed twice. The command to continue is shown before: mpirun forwards nothing after Ctrl-C, and ends with 1."""
    run_dir = tmp_path / "run"
    with terminal(tmp_path, command(2, *ENDLESS, "--run-dir", str(run_dir))) as shown:
        shown.expect(r"round +1/100000 [^\n]*\n")
        assert shown.isalive()  # its first line came while it was running
        begun = shown.before
        shown.sendintr()
        shown.sendintr()
        shown.read()
        assert shown.wait() == 1
    (again,) = re.findall(r"to continue after an interruption: (.*?)\r?\n", unfolded(begun))
    words = shlex.split(again)
    assert words[:6] == ["mpirun", "-n", "2", "python", "-m", "fedmpi.main"]
    saved = RunDir(run_dir).checkpoints()[0][0]
    code, out, errors = run_main(*words[6:], f"rounds={saved + 1}", "output.progress=plain")
    assert code == 0 and f"resuming after round {saved}" in out, errors


@pytest.mark.slow
def test_ctrl_c_says_how_to_continue(tmp_path: Path) -> None:
    """After ^C, with what is saved."""
    with terminal(tmp_path, command(1, *ENDLESS, "--run-dir", str(tmp_path / "run"))) as shown:
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

"""Processes that tests and torture start: in a session of their own, and ended with all that is below them.

Only processes started here are ever signalled, each by its number.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedmpi.mpi import mpirun

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """Ours, without marks of an MPI job that this process may be part of, and fit for more ranks than cores."""
    marks = ("OMPI_COMM_", "PMIX_", "PMI_", "PRTE_JOB")
    kept = {key: value for key, value in mpirun.environment(sys.maxsize).items() if not key.startswith(marks)}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"}


def started(
    words: Sequence[str], out: Path, err: Path | None = None, *, folder: Path = ROOT
) -> subprocess.Popen[bytes]:
    """A command under way in `folder`; it adds its output to files, so it never waits for us to read."""
    own = environment() | mpirun.files_in(out.parent)
    with open(out, "ab") as output, open(err or out, "ab") as errors:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=own, cwd=folder, start_new_session=True
        )


def program(name: str) -> list[str]:
    """The words that start a program of this package, in the folder `ROOT`."""
    return [sys.executable, "-m", f"tests.torture.{name}"]


def descendants(pid: int) -> list[int]:
    """`pid` and all processes below it, as /proc knows them; parents first."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def state_of(process: Path) -> str:
    """The letter that its folder in /proc gives for its state, or a thread's; Z if it is gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def only_starts(out: str) -> bool:
    """A command that was refused: it has printed at most the line that says what its start waits for."""
    return re.fullmatch(r"(starting \d+ ranks?: loading [\w ,]+\n)?", out) is not None


def is_running(pid: int) -> bool:
    """Whether the process is there and not a zombie."""
    return state_of(Path(f"/proc/{pid}")) not in "ZX"


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a launcher and all its ranks at (nearly) the same moment, and waits for their end."""
    family = descendants(process.pid) if process.poll() is None else []
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    process.wait()
    while any(map(is_running, family)):
        time.sleep(0.002)

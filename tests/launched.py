"""Starts the command as a user does, under mpirun, and ends it as the world does: by signals and kills.

`mpirun` is the one beside this interpreter, or the one in PATH; a test that needs it skips where there
is none.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedmpi.errors import UserError
from fedmpi.mpi import mpirun as launcher
from fedmpi.mpi.mpirun import start_words
from fedmpi.report.records import read_records
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir

LIMIT_S = 600.0
"""No run here takes more than seconds on an idle machine; this only ends a hang."""
ENDS_WITHIN_S = 120.0
"""From the first word about a failure to the end of the last process: seconds, unless the machine is starved."""
Launch = Callable[[Sequence[str]], "Launched"]
"""The fixture `launches` of the end-to-end tests."""
Start = Callable[..., "Launched"]
"""The fixture `start` of the end-to-end tests."""
RunMain = Callable[..., tuple[int, str, str]]
"""Their fixture `run_main`: exit code, output and errors of the command in this process, which saves a start."""
Made = Callable[..., Path]
"""Their fixture `made`: a copy of a finished run."""
ENDLESS = ("rounds=100000", "evaluation.every=100", "output.progress=plain")
TOPK = ("method.name=topk", "evaluation.every=5", "output.progress=plain")
"""Of a method whose clients have a memory."""


ROOT = Path(__file__).resolve().parents[1]


def environment() -> dict[str, str]:
    """Ours, without marks of an MPI job that this process may be part of, and fit for more ranks than cores."""
    marks = ("OMPI_COMM_", "PMIX_", "PMI_", "PRTE_JOB")
    kept = {key: value for key, value in launcher.environment(sys.maxsize).items() if not key.startswith(marks)}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"}


def started(
    words: Sequence[str], out: Path, err: Path | None = None, *, folder: Path = ROOT, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A command under way in a session of its own; it adds its output to files, so it never waits for us to read."""
    own = (env or environment()) | launcher.files_in(out.parent)
    with open(out, "ab") as output, open(err or out, "ab") as errors:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=own, cwd=folder, start_new_session=True
        )


def descendants(pid: int) -> list[int]:
    """`pid` and all processes below it; parents first."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return [pid]


def state_of(process: Path) -> str:
    """The letter that its folder in /proc gives for its state, or a thread's; Z if it is gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


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


def mpirun() -> str:
    """Its path; skips the test if there is none."""
    try:
        return start_words(2)[0]
    except UserError as error:
        pytest.skip(error.text())


ULFM = ("--with-ft", "ulfm")
"""Options of mpirun with which a job outlives its ranks."""


def command(
    ranks: int, *arguments: str, program: Sequence[str] = ("-m", "fedmpi.main"), options: Sequence[str] = ()
) -> list[str]:
    """`python -m fedmpi.main` on that many ranks; 1 is without mpirun, to which `options` go."""
    mpirun_words = [mpirun(), *options, "-n", str(ranks)] if ranks > 1 else []
    return [*mpirun_words, sys.executable, *program, *arguments]


PROGRAM = """
import os, signal, sys, time
from fedmpi import experiment, train_round
from fedmpi.running import folder, losses, resuming, server, start
from fedmpi.clock import Traffic
from fedmpi.errors import RunDirError
from fedmpi.mpi.launch import claimed
rank = claimed()[0]

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def before(module, name, what):
    original = getattr(module, name)
    def call(*arguments, **options):
        what(*arguments, **options)
        return original(*arguments, **options)
    setattr(module, name, call)

clocks = []
before(Traffic, "__init__", lambda traffic: clocks.append(traffic))

def hours_go_by():
    losses.SUSPENDED_AFTER_S = float("inf")  # they are not those of a process that was suspended
    for traffic in clocks:
        traffic.now = lambda: time.perf_counter() + 36_000

PATCH
from fedmpi.main import main
sys.exit(main(sys.argv[1:]))
"""
"""The command with something of it changed, on some ranks: `die()` and `stop()` end or stop a rank's process,
`before(module, name, what)` calls `what`, with the same arguments, before each call of that function, and after
`hours_go_by()` this rank's watchdog finds that hours have gone by.
"""


def patched(patch: str) -> Sequence[str]:
    """The command as a program that begins with `patch`."""
    return "-c", PROGRAM.replace("PATCH", patch)


def unfolded(text: str) -> str:
    """Returns a text with each command on the line of its `to continue ...:`, and each warning or cause on one line."""
    text = re.sub(r"(?m)^( *)(?:warning:|cause:|at ).*(?:\n\1  .*)*", lambda found: _joined(found[0]), text)
    return re.sub(r"(?m)(^to continue[^\n]*:)\r?\n +", r"\1 ", text)


def rejoined(text: str) -> str:
    """A message that was folded at 80 columns, as one line."""
    return _joined(unfolded(text))


def _joined(text: str) -> str:
    return re.sub(r"\n +", " ", text)


@dataclass
class Launched:
    """A command under way; its output goes to files, so it never waits for us to read. Commands in it are unfolded."""

    process: subprocess.Popen[bytes]
    out_path: Path
    err_path: Path
    deadline: float

    @property
    def out(self) -> str:
        return unfolded(self.out_path.read_text(errors="replace"))

    @property
    def err(self) -> str:
        """Without the NUL that mpirun may put between the lines of two ranks."""
        return unfolded(self.err_path.read_text(errors="replace").replace("\0", ""))

    def wait(self) -> int:
        """The exit code. A hang is an error, after the processes have been ended."""
        try:
            return self.process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            kill_all(self.process)
            raise AssertionError(f"no end within {LIMIT_S:g} s\n{self.out}\n{self.err}") from None

    def wait_until(self, is_so: Callable[[], bool]) -> bool:
        """Whether it became so while the command ran (looks every 10 ms)."""
        while not is_so():
            if self.process.poll() is not None or time.monotonic() > self.deadline:
                return is_so()
            time.sleep(0.01)
        return True

    def advice(self) -> list[str]:
        """The words of the one command that it says to continue with."""
        said = "to continue[^:\n]*: (.*)"
        (command,) = re.findall(said, self.err) or re.findall(said, self.out)
        return shlex.split(command)


def launch(folder: Path, words: Sequence[str]) -> Launched:
    """Starts `words` in a session of its own, with its output and other files in `folder`."""
    number = len(list(folder.glob("*.out")))
    out, err = folder / f"{number}.out", folder / f"{number}.err"
    return Launched(started(words, out, err, folder=folder), out, err, time.monotonic() + LIMIT_S)


def ends_in_time(launched: Launched, started_to_fail: Callable[[], bool]) -> int:
    """The exit code of a run that fails by itself; nothing of it may be left when its time is over."""
    family: list[int] = []

    def is_failing() -> bool:
        family[:] = descendants(launched.process.pid)
        return started_to_fail()

    assert launched.wait_until(is_failing), f"it did not fail\n{launched.out}\n{launched.err}"
    failed_at = time.monotonic()
    code = launched.wait()
    assert all_end(family, failed_at + ENDS_WITHIN_S), f"processes are left\n{launched.err}"
    return code


def all_end(family: list[int], deadline: float) -> bool:
    """Whether the last of these processes ends before the deadline."""
    while any(map(is_running, family)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(is_running, family))


def block(errors: str) -> str:
    """The one block that names where it happened, up to how to continue."""
    end = "(?:to continue: |nothing is left to continue in )"
    blocks = re.findall(rf"^(fedmpi: failed on .*?\n){end}", errors, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1, f"{len(blocks)} blocks\n{errors}"
    return blocks[0]


def failed_on(rank: int | str = r"\d", then: str = "") -> str:
    """A pattern of the line that says on which rank, and `then` in which round, of which client, in which stage."""
    return rf"fedmpi: failed on rank {rank} on [^,\s]+(?:, )?{then}"


def last_start(run_dir: Path) -> dict[str, Any]:
    """What the manifest says of the run's last start."""
    return dict(manifest.read_starts(RunDir(run_dir))[-1])


def has_rounds(run_dir: Path, count: int) -> Callable[[], bool]:
    return lambda: len(read_records(RunDir(run_dir))) >= count


def ranks_of(launched: Launched) -> list[int]:
    """Process numbers of the ranks, in order."""
    found = {}
    for pid in descendants(launched.process.pid):
        if rank := psutil.Process(pid).environ().get("OMPI_COMM_WORLD_RANK"):
            found[int(rank)] = pid
    return [found[rank] for rank in sorted(found)]


@contextlib.contextmanager
def paused(launched: Launched, rank: int) -> Iterator[None]:
    """A rank does nothing within the block: what happens there, it meets all at once."""
    (pid,) = ranks_of(launched)[rank : rank + 1]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert launched.wait_until(lambda: all(state_of(path) == "T" for path in Path(f"/proc/{pid}/task").iterdir()))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def await_event(is_so: Callable[[], bool], problem: str) -> None:
    """Looks every 10 ms whether it is so; fails with the problem if that takes too long."""
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, problem
        time.sleep(0.01)


def kill(launched: Launched, *ranks: int) -> None:
    pids = ranks_of(launched)
    for rank in ranks:
        os.kill(pids[rank], signal.SIGKILL)

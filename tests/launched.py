"""Starts the command as a user does, under mpirun, and ends it as the world does: by signals and kills.

`mpirun` is the one beside this interpreter, or the one in PATH; a test that needs it skips where there
is none. Only processes started here are ever signalled, each by its number.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedmpi.report.records import read_records
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.launch import files_in

LIMIT_S = 600.0
"""No run here takes more than seconds on an idle machine; this only ends a hang."""
ENDS_WITHIN_S = 30.0
"""From the first word about a failure to the end of the last process: 10 s where ranks need not share their cores."""
Start = Callable[..., "Launched"]
"""The fixture `start` of the end-to-end tests."""
RunMain = Callable[..., tuple[int, str, str]]
"""Their fixture `run_main`: exit code, output and errors of the command in this process."""
ENDLESS = ("rounds=100000", "evaluation.every=100", "output.progress=plain")


def mpirun() -> str:
    """Its path; skips the test if there is none."""
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip(f"no mpirun beside {sys.executable}, and none in PATH")
    return found


def environment() -> dict[str, str]:
    """Ours, without marks of an MPI job that pytest itself may be part of, and fit for more ranks than cores."""
    marks = ("OMPI_COMM_", "PMIX_", "PMI_", "PRTE_JOB")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(marks)}
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    wanted = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    return kept | wanted


ULFM = ("--with-ft", "ulfm")
"""Options of mpirun with which a job outlives its ranks."""


def command(
    ranks: int, *arguments: str, program: Sequence[str] = ("-m", "fedmpi.main"), options: Sequence[str] = ()
) -> list[str]:
    """`python -m fedmpi.main` on that many ranks; 1 is without mpirun, to which `options` go."""
    launcher = [mpirun(), *options, "-n", str(ranks)] if ranks > 1 else []
    return [*launcher, sys.executable, *program, *arguments]


@dataclass
class Launched:
    """A command under way; its output goes to files, so it never waits for us to read."""

    process: subprocess.Popen[bytes]
    out_path: Path
    err_path: Path
    deadline: float

    @property
    def out(self) -> str:
        return self.out_path.read_text(errors="replace")

    @property
    def err(self) -> str:
        """Without the NUL that mpirun may put between the lines of two ranks."""
        return self.err_path.read_text(errors="replace").replace("\0", "")

    def wait(self) -> int:
        """The exit code. A hang is an error, after the processes have been ended."""
        try:
            return self.process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end within {LIMIT_S:g} s\n{self.out}\n{self.err}") from None

    def wait_until(self, is_so: Callable[[], bool]) -> bool:
        """Whether it became so while the command ran (looks every 2 ms)."""
        while not is_so():
            if self.process.poll() is not None or time.monotonic() > self.deadline:
                return is_so()
            time.sleep(0.002)
        return True

    def kill(self) -> None:
        """SIGKILL to mpirun and all its ranks at (nearly) the same moment, and waits for their end."""
        family = descendants(self.process.pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.process.wait(30)
        while any(map(is_running, family)):
            time.sleep(0.002)


def launch(folder: Path, words: Sequence[str]) -> Launched:
    """Starts `words` in a session of its own, with its output and other files in `folder`."""
    number = len(list(folder.glob("*.out")))
    out_path, err_path = folder / f"{number}.out", folder / f"{number}.err"
    with open(out_path, "wb") as out, open(err_path, "wb") as err:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment() | files_in(folder),
            start_new_session=True,
            cwd=folder,
        )
    return Launched(process, out_path, err_path, time.monotonic() + LIMIT_S)


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


def is_running(pid: int) -> bool:
    """Whether the process is there and not a zombie."""
    return state_of(Path(f"/proc/{pid}")) not in "ZX"


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
    """The one block that names where it happened, up to how to go on."""
    end = "(?:to go on: |nothing is left to go on with in )"
    blocks = re.findall(rf"^(fedmpi: failed on .*?\n){end}", errors, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1, f"{len(blocks)} blocks\n{errors}"
    return blocks[0]


def has_rounds(run_dir: Path, count: int) -> Callable[[], bool]:
    return lambda: len(read_records(RunDir(run_dir))) >= count


def ranks_of(launched: Launched) -> list[int]:
    """Process numbers of the ranks, in order."""
    found = {}
    for pid in descendants(launched.process.pid):
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        number = [word.partition(b"=")[2] for word in words if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
        if number:
            found[int(number[0])] = pid
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


def state_of(process: Path) -> str:
    """The letter that its folder in /proc gives for its state, or a thread's; Z if it is gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def kill(launched: Launched, *ranks: int, number: int = signal.SIGKILL) -> None:
    pids = ranks_of(launched)
    for rank in ranks:
        os.kill(pids[rank], number)

"""How ranks are started on this machine: cores, the launcher's words, and Open MPI's environment."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from data_fixtures import refusal

from fedmpi.mpi import mpirun

SHARES = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
EXPECTED = "expected words without variables and {ranks} for the number, as 'srun -n {ranks}'"
UNBOUND = "PRTE_MCA_hwloc_default_binding_policy"


def machine(monkeypatch: pytest.MonkeyPatch, physical: int | None, threads: int, allowed: int) -> None:
    """A faked topology."""
    monkeypatch.setattr(mpirun.psutil, "cpu_count", lambda logical: threads if logical else physical)
    monkeypatch.setattr(mpirun.os, "cpu_count", lambda: threads)
    monkeypatch.setattr(mpirun.os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    for name in (*SHARES, UNBOUND):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("physical", "threads", "allowed", "cores"), [(2, 4, 4, 2), (8, 16, 3, 3), (None, 4, 4, 4), (1, 2, 2, 1)]
)
def test_cores(monkeypatch: pytest.MonkeyPatch, physical: int | None, threads: int, allowed: int, cores: int) -> None:
    """Physical ones, as Open MPI counts them, of those that the affinity mask has; threads where nobody knows cores."""
    machine(monkeypatch, physical, threads, allowed)
    assert mpirun.cores() == cores


def test_more_ranks_than_cores_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 2 cores with 4 threads, 3 ranks need leave to share cores; what the user has set stays."""
    machine(monkeypatch, 2, 4, 4)
    assert not {*SHARES, UNBOUND} & set(mpirun.environment(2))
    found = mpirun.environment(3)
    assert {name: found[name] for name in SHARES} == SHARES and found[UNBOUND] == "none"
    machine(monkeypatch, 8, 8, 8)
    two_jobs = mpirun.environment(3, at_once=2)
    assert two_jobs[UNBOUND] == "none" and not set(SHARES) & set(two_jobs)
    monkeypatch.setenv(UNBOUND, "core")
    assert mpirun.environment(5, at_once=2)[UNBOUND] == "core"


def test_a_shell_reads_the_same_environment() -> None:
    """As `jobs/setup.sh` does."""
    script = f'eval "$({sys.executable} -m fedmpi.mpi.mpirun 100000)"; echo ${UNBOUND}'
    done = subprocess.run(["bash", "-c", script], env={}, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.stdout == "none\n", done.stderr


def test_the_words_of_a_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert mpirun.start_words(1) == []
    assert mpirun.start_words(4, "env --mpi='p mix' -n {ranks}") == ["env", "--mpi=p mix", "-n", "4"]
    monkeypatch.setattr(mpirun.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "mpirun").touch()
    assert mpirun.start_words(3) == [str(tmp_path / "mpirun"), "-n", "3"]


@pytest.mark.parametrize(
    ("launcher", "problem"),
    [
        ("no-such-program -n {ranks}", "no program 'no-such-program' in PATH"),
        ("srun -n 2", f"{EXPECTED}, got 'srun -n 2'"),
        ("srun -n {ranks} $MORE", f"{EXPECTED}, got 'srun -n {{ranks}} $MORE'"),
        ("x '{ranks}", """cannot be read: No closing quotation, in "x '{ranks}\""""),
    ],
)
def test_launchers_that_cannot_be(launcher: str, problem: str) -> None:
    assert refusal(lambda: mpirun.start_words(3, launcher)) == f"--launcher: {problem}"


def test_without_mpirun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mpirun.shutil, "which", lambda name: None)
    monkeypatch.setattr(mpirun.sys, "executable", str(tmp_path / "python"))
    assert re.search("^--ranks: no mpirun beside .*; --ranks 1 needs none$", refusal(mpirun.start_words, 2))

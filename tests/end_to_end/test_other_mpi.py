"""Other MPI libraries from the package registry: start, bits, failure and Ctrl-C, as with Open MPI."""

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import venvs
from launched import Launch, descendants, ends_in_time, failed_on, has_rounds
from small_runs import SMALL, finished, undisturbed

import fedmpi
from fedmpi.store.manifest import read_starts
from fedmpi.store.run_dir import RunDir

LIBRARIES = {"mpich": "MPICH", "impi-rt": "Intel(R) MPI Library"}
"""What stands at the beginning of `MPI.Get_library_version()`, by package."""

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module", params=LIBRARIES)
def mpi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder of programs of an environment with that library, and its name. What its ended jobs leave behind goes
    at the end."""
    before = left_behind()
    python = venvs.make(tmp_path_factory.mktemp("venv") / request.param, Path(fedmpi.__file__).parents[1])
    venvs.install(python, request.param)
    yield python.parent, LIBRARIES[request.param]
    for path in left_behind() - before:
        path.unlink(missing_ok=True)


def left_behind() -> set[Path]:
    """Of MPICH's jobs that a signal has ended: shared memory, and files of its launcher."""
    return {*Path("/dev/shm").glob("mpich_shm_*"), *Path(tempfile.gettempdir()).glob("hydra_hwloc_xmlfile_*")}


def words_of(programs: Path, ranks: int, run_dir: Path, *words: str) -> list[str]:
    path = f"PATH={programs}{os.pathsep}{os.environ['PATH']}"
    command = [str(programs / "python"), "-m", "fedmpi.main", *SMALL, "--run-dir", str(run_dir), *words]
    return ["env", path, str(programs / "mpirun"), "-n", str(ranks), *command]


def test_the_same_bits(mpi: tuple[Path, str], tmp_path: Path, launches: Launch) -> None:
    """On 1 and 3 ranks those of a process without MPI; the manifest names the library that ran."""
    expected = undisturbed(tmp_path)
    for ranks in (1, 3):
        run_dir = tmp_path / f"on-{ranks}"
        launched = launches(words_of(mpi[0], ranks, run_dir))
        assert launched.wait() == 0, launched.err
        assert finished(run_dir) == expected
        (begun,) = read_starts(RunDir(run_dir))
        assert begun["mpi"].startswith(mpi[1]) and len(begun["ranks"]) == ranks


def test_a_rank_that_fails_ends_all(mpi: tuple[Path, str], tmp_path: Path, launches: Launch) -> None:
    """The launcher's own text follows."""
    fails = ("train.lr=1e12", "train.on_divergence=fail", "method.name=fedavg")
    launched = launches(words_of(mpi[0], 3, tmp_path / "run", *fails))
    assert ends_in_time(launched, lambda: "failed on rank" in launched.err) != 0
    assert re.search(failed_on(then=r"round 1, client \d, stage local_training"), launched.err)
    assert "cause: DivergenceError: " in launched.err


def test_ctrl_c(mpi: tuple[Path, str], tmp_path: Path, launches: Launch) -> None:
    """All processes end."""
    launched = launches(words_of(mpi[0], 3, tmp_path / "run", "rounds=100000"))
    assert launched.wait_until(has_rounds(tmp_path / "run", 2)), launched.err
    family = descendants(launched.process.pid)
    os.killpg(launched.process.pid, signal.SIGINT)  # a terminal signals all of its foreground group
    assert len(family) >= 4 and ends_in_time(launched, lambda: True) != 0

"""Fixtures of the tests that run under mpirun: the communicator, a parallel assert, and runs compared bit for bit."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from same_bits import Bits, References

from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.starting import world

REFERENCES = "FEDMPI_TEST_REFERENCES"
"""Names the folder in which `jobs/test.sh` lets jobs of 2, 3 and 5 ranks share what one process has computed."""


@pytest.fixture(scope="session")
def comm() -> Communicator:
    """This job's communicator: `comm.rank`, `comm.size` and the collectives of `fedmpi.mpi`."""
    return world()


@pytest.fixture
def on_all_ranks(comm: Communicator) -> Callable[[bool, str], None]:
    """A parallel assert, called by all ranks at the same place: `on_all_ranks(ok, message)`.

    A bare `assert` that fails on one rank lets the others wait in their next collective for ever.
    Here the verdicts are shared first, so that the test fails everywhere and names who failed.
    """

    def check(ok: bool, message: str) -> None:
        verdicts = comm.allgather_object("" if ok else message or "failed")
        failed = [f"rank {rank}: {text}" for rank, text in enumerate(verdicts) if text]
        if failed:
            pytest.fail(f"failed on {len(failed)} of {comm.size} ranks\n" + "\n".join(failed), pytrace=True)

    return check


@pytest.fixture(scope="session")
def references(comm: Communicator, tmp_path_factory: pytest.TempPathFactory) -> References:
    folder = os.environ.get(REFERENCES) or str(tmp_path_factory.mktemp("references"))
    return References(Path(comm.bcast_object(folder)))


@pytest.fixture
def bits(
    comm: Communicator,
    tmp_path: Path,
    references: References,
    on_all_ranks: Callable,
    capfd: pytest.CaptureFixture[str],
) -> Bits:
    return Bits(comm, Path(comm.bcast_object(str(tmp_path))), references, on_all_ranks, capfd)

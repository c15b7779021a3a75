"""Fixtures of the tests that run under mpirun: the communicator and a parallel assert."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from fedmpi.mpi.serial import world

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm
    from fedmpi.mpi.serial import SerialComm


@pytest.fixture(scope="session")
def comm() -> Comm | SerialComm:
    """This job's communicator: `comm.rank`, `comm.size` and the collectives of `fedmpi.mpi`."""
    return world()


@pytest.fixture
def on_all_ranks(comm: Comm | SerialComm) -> Callable[[bool, str], None]:
    """A parallel assert, called by all ranks at the same place: `on_all_ranks(ok, message)`.

    A bare `assert` that fails on one rank lets the others wait in their next collective for ever.
    Here the verdicts are shared first, so that the test fails everywhere and names who failed.
    """

    def check(ok: bool, message: str) -> None:
        verdicts = comm.allgather_text("" if ok else message or "failed")
        failed = [f"rank {rank}: {text}" for rank, text in enumerate(verdicts) if text]
        if failed:
            pytest.fail(f"failed on {len(failed)} of {comm.size} ranks\n" + "\n".join(failed), pytrace=True)

    return check

"""Ranks that die, and how those left find together: MPI's User-Level Failure Mitigation (ULFM), in three rules.

`mpirun --with-ft ulfm` lets a job live on that has lost ranks. MPI tells of a death unevenly: of one
collective, one rank gets an error of any class and another none. Hence

1. any MPI error on any rank revokes the communicator: every other call on it fails, too, so nobody waits for ever;
2. at the end of each step of a round all ranks agree that all came through it, and only then does it count:
   the ranks that are left are always in the same step;
3. a communicator ends with exactly one failed agreement, on all ranks, and is then shrunk to those that live.

`Comm` follows them; here are the two calls that all ranks make in the same order, and what they bring.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedmpi.mpi.launch import outlives_ranks
from fedmpi.mpi.library import MPI


def is_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ranks may die without ending the job: `mpirun --with-ft ulfm`, and an mpi4py that can tell."""
    return outlives_ranks(environment) and hasattr(MPI.Comm, "Iagree")


def agreed(mpi: Any, came_through: bool, sleep_until: Callable[[Any], None]) -> bool:
    """Whether every rank came through, the same answer on all; False if one has died."""
    flag = np.array([came_through], np.intc)
    try:
        sleep_until(mpi.Iagree(flag))
    except MPI.Exception:
        return False
    return bool(flag[0])


def survivors(mpi: Any) -> Any:
    """The communicator of those that live, in the same order, after an agreement that failed."""
    left = mpi.Shrink()
    left.Set_errhandler(MPI.ERRORS_RETURN)
    return left

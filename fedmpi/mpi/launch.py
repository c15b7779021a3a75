"""Which rank this process is, read from what launchers leave in the environment.

Needed before MPI starts: a mistake in a config must be reported by one rank, within seconds, on a
login node that may have no working MPI at all. One table, so that a new launcher is one line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

# (rank, size) as Open MPI, MPICH / Intel MPI / Slurm's PMI-2, MVAPICH, Cray PALS and PMIx set them.
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)


def launched_as(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """(rank, size) if a launcher started this process, else None."""
    for rank, size in _VARIABLES:
        if environment.get(rank, "").isdecimal():
            return int(environment[rank]), int(environment.get(size, "1"))
    return None

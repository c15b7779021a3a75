"""What the ranks listen on: nothing, where all of them are on one host.

Open MPI opens a TCP port on all interfaces for every rank, even if all messages go through shared memory.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from fedmpi.mpi.environment import whole_number

_CHOICE = "OMPI_MCA_btl"
# Twice Open MPI's segment of shared memory for each rank. A container's /dev/shm may be smaller; then TCP is needed.
_SHARED_BYTES = 2 * 16 * 2**20


def keep_to_this_host(environment: MutableMapping[str, str]) -> None:
    """Before MPI starts: leaves TCP out if all ranks are here, they have room for messages in shared memory, and nobody
    has chosen the transports (`mpirun --mca btl ...`).
    """
    names = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    size, here = (whole_number(environment, name) for name in names)
    if size is None or size != here or _CHOICE in environment:
        return
    try:
        disk = os.statvfs(environment.get("OMPI_MCA_btl_sm_backing_directory", "/dev/shm"))
    except OSError:
        return
    if disk.f_bavail * disk.f_frsize >= size * _SHARED_BYTES:
        environment[_CHOICE] = "^tcp"

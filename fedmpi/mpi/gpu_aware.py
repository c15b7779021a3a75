"""Whether this job's MPI can send from and receive into a GPU's memory: found out to be said, not used.

Messages travel from the memory of the host, uploads from page-locked memory. A worker trains its next client in the
same parameters while an upload is on its way, so a copy is made in any case; after a lost rank it is sent again from
there; and rank 0 need not have a GPU. What a GPU-aware MPI could save is one copy on each side.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from typing import Any

from fedmpi.mpi.version import loaded_library

_QUERY = "MPIX_Query_cuda_support"
"""Of Open MPI and MPICH: 1 where the library was built for CUDA and can use it now."""
VARIABLES = ("MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU", "MV2_USE_CUDA", "MVP_USE_CUDA")
"""With which Cray MPICH, MPICH, MVAPICH2 and MVAPICH-Plus are told to be, where the library cannot be asked."""


def answer(library: Any, environment: Mapping[str, str] = os.environ) -> str:
    """What `library` (loaded, MPI started) says or the environment asks for, as the end of a sentence about it."""
    if (query := getattr(library, _QUERY, None)) is not None:
        return f"{'is' if query() else 'is not'} GPU-aware ({_QUERY} says)"
    for name in VARIABLES:
        if name in environment:
            return f"does not say whether it is GPU-aware ({name}={environment[name]} is set)"
    return "does not say whether it is GPU-aware"


def notes() -> tuple[str, ...]:
    """Lines for the log of a run that trains on GPUs; none without MPI."""
    if not (name := loaded_library()):
        return ()
    # mpi4py's own module: its library is searched for a name after it.
    library = ctypes.CDLL(sys.modules["mpi4py.MPI"].__file__)
    asked = f"{name.partition(',')[0]} {answer(library)}"
    return asked, "messages are sent from the memory of the hosts, whatever the MPI"

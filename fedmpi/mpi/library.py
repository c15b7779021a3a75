"""MPI itself, loaded for one thread per rank."""

from mpi4py import rc

rc.thread_level = "funneled"
from mpi4py import MPI  # noqa: E402 - `rc` counts only before this line

__all__ = ["MPI"]

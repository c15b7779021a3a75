"""MPI itself, loaded and not yet started; it ends with the process."""

from mpi4py import rc

rc.initialize = False
rc.finalize = True
from mpi4py import MPI  # noqa: E402 - `rc` counts only before this line

__all__ = ["MPI"]

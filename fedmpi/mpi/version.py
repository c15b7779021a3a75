"""The name of the MPI library, without starting MPI."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def library_version() -> str:
    """The first line of `MPI.Get_library_version()`; empty where mpi4py finds no MPI library.

    Loads the library, but does not start MPI: a login node may forbid that. Not to be called before `all_ranks`.
    """
    if "mpi4py.MPI" not in sys.modules:
        try:
            from mpi4py import rc

            rc.initialize = rc.finalize = False
            import_module("mpi4py.MPI")
        except (ImportError, RuntimeError, OSError):
            return ""
    return loaded_library()


def loaded_library() -> str:
    """The `library_version` of the library that this process has loaded; empty if it has loaded none."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    lines = mpi.Get_library_version().strip("\0\n ").splitlines() if mpi is not None else []
    return " ".join(lines[0].split()) if lines else ""

"""Whether a person sees our output as it is written.

A live line ends in a carriage return. Launchers forward whole lines only (Open MPI's prterun, tried), so under one of
them a live line would show nothing until the run ends, although rank 0 has a pseudo terminal as its stdout there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TextIO

# One variable of each launcher that `fedmpi.mpi.launch` knows, and of srun, which may start a process without MPI.
_LAUNCHED = (
    "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "PMIX_RANK", "SLURM_STEP_ID",
)  # fmt: skip
_DUMB = ("dumb", "unknown")
DEFAULT_COLUMNS = 80


def columns_of_terminal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> int:
    """The width in columns of the terminal that `stream` writes to; 0 where no line can be updated."""
    if environ.get("TERM") in _DUMB or any(name in environ for name in _LAUNCHED):
        return 0
    with contextlib.suppress(OSError, ValueError):  # a closed stream says ValueError
        if stream.isatty():
            return _columns(stream)
    return 0


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
    except OSError:
        return DEFAULT_COLUMNS

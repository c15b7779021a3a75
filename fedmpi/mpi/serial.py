"""The communicator of a single process: every collective is the identity, and MPI is never loaded.

`python -m fedmpi.main` therefore takes the same path through a round as `mpirun -n 5 ...`, on a
machine that need not have MPI at all.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedmpi.clock import Traffic
from fedmpi.mpi.communicator import Loss, Request

if TYPE_CHECKING:
    import numpy as np
    import torch


class SerialComm:
    """One process: every collective is the identity."""

    rank, size, is_root, local_rank, server_here = 0, 1, True, 0, True
    started_as, started_size, recovers = 0, 1, False
    members: tuple[int, ...] = (0,)
    here: tuple[int, ...] = (0,)
    library = ""
    patience_s = math.inf

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.host = platform.node()

    def _nothing(self, *arguments: Any) -> None:
        """All that one process has to do for the others."""

    wait_for_all = bcast = reduce_sum = allreduce_sum = agree = call_while_waiting = wait = _nothing

    def start_gather(self, send: torch.Tensor, num_bytes: Sequence[int], receive: torch.Tensor) -> Request:
        receive[: num_bytes[0]].copy_(send[: num_bytes[0]])
        return self

    def gather_rows(self, row: np.ndarray) -> np.ndarray:
        return row[None]

    allgather_rows = gather_rows

    def allgather_text(self, text: str) -> list[str]:
        return [text]

    def recover(self) -> Loss:
        raise AssertionError("one process loses nobody")

    def leave(self, code: int) -> int:
        return code

    def abort(self, code: int) -> None:
        raise SystemExit(code)

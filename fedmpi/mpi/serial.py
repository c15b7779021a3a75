"""The communicator of a single process: every collective is the identity, and MPI is never loaded.

`python -m fedmpi.main` therefore takes the same path through a round as `mpirun -n 5 ...`, on a
machine that need not have MPI at all.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmpi.mpi.deadline import at_most
from fedmpi.mpi.launch import check_size, launched_as
from fedmpi.mpi.neighbours import Neighbours
from fedmpi.mpi.network import keep_to_this_host
from fedmpi.mpi.traffic import Traffic

if TYPE_CHECKING:
    from fedmpi.mpi.communicator import Communicator, Loss, Request


class _Done:
    def wait(self) -> None:
        pass


class SerialComm:
    """One process: every collective is the identity."""

    rank, size, is_root, local_rank, server_here = 0, 1, True, 0, True
    started_as, started_size, recovers = 0, 1, False
    members: tuple[int, ...] = (0,)
    lost_at_start: tuple[Loss, ...] = ()

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.host = platform.node()

    def wait_for_all(self) -> None: ...

    def bcast(self, buffer: torch.Tensor) -> None: ...

    def reduce_sum(self, buffer: torch.Tensor) -> None: ...

    def allreduce_sum(self, buffer: torch.Tensor) -> None: ...

    def start_gather(self, send: torch.Tensor, num_bytes: Sequence[int], receive: torch.Tensor) -> Request:
        receive[: num_bytes[0]].copy_(send[: num_bytes[0]])
        return _Done()

    def start_barrier(self) -> Request:
        return _Done()

    def gather_rows(self, row: np.ndarray) -> np.ndarray | None:
        return row[None]

    def allgather_rows(self, row: np.ndarray) -> np.ndarray:
        return row[None]

    def allgather_text(self, text: str) -> list[str]:
        return [text]

    def agree(self) -> None: ...

    def recover(self) -> Loss:
        raise AssertionError("one process loses nobody")

    def wait_at_most(self, seconds: float) -> None: ...

    def call_while_waiting(self, look: Callable[[], None] | None) -> None: ...

    def end_all(self) -> None: ...

    def leave(self, code: int) -> int:
        return code

    def abort(self, code: int) -> None:
        raise SystemExit(code)


def world(limit_s: float = 0.0) -> Communicator:
    """This job's ranks: MPI's if a launcher started us, else this process alone.

    Raises `LaunchError` where MPI knows of one rank only, and the launcher has started more. Where MPI does not
    start within `limit_s` (0: without limit), because a rank died before it or hangs, this process ends itself; where
    the job outlives its ranks and is on one host, a rank that died then ends the job at once.
    """
    if (launched := launched_as()) is None:
        return SerialComm()
    text = f"fedmpi: rank {launched[0]} on {platform.node()}: MPI did not start within {limit_s:g} s: another rank "
    text += "died or hangs; start again, or set mpi.startup_timeout_s"
    keep_to_this_host(os.environ)
    with at_most(limit_s, text, Neighbours.of_this_process()) as has_started:
        from fedmpi.mpi.comm import all_ranks

        has_started()
        comm = all_ranks()
    check_size(comm.started_size)
    return comm

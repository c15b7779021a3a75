"""The collectives of a round, on flat buffers, and the art of waiting.

`Comm` is MPI, its twin `SerialComm` one process: the same calls, so there is one path through a round.
Nothing here is pickled except the few words exchanged at start-up and in errors
(`allgather_text`). Both ends of a collective are the same line of the caller's code.

A waiting rank sleeps: on a laptop it would otherwise take a core from the ranks that train. It
polls a non-blocking barrier, at first often and then every 5 ms, and then runs the blocking
collective, because polling the collective itself moves a large message one fragment a poll.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mpi4py import rc

rc.thread_level = "funneled"  # one thread per rank talks to MPI
from mpi4py import MPI  # noqa: E402

from fedmpi.mpi.serial import Request, Traffic  # noqa: E402
from fedmpi.tensors import ALIGN_BYTES  # noqa: E402

# The first polls are close together for short waits; a long one is found to be over at most 5 ms late.
_FIRST_POLL_S, _LAST_POLL_S = 2e-4, 5e-3
# A broadcast or reduction goes out in pieces: below MPI's 2^31 counts, and small enough that the
# temporary buffers of tree algorithms stay out of the memory bill.
_PIECE_BYTES = 64 * 2**20


class Comm:
    """The ranks of this job."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self.rank: int = mpi.Get_rank()
        self.size: int = mpi.Get_size()
        self.is_root = self.rank == 0
        self.traffic = Traffic()
        self._block = MPI.BYTE.Create_contiguous(ALIGN_BYTES).Commit()
        node = mpi.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank: int = node.Get_rank()
        self.server_here: bool = 0 in node.allgather(self.rank)
        self.host: str = MPI.Get_processor_name()
        node.Free()

    def wait_for_all(self) -> None:
        """A barrier in which a waiting rank sleeps."""
        self._sleep_until(self._mpi.Ibarrier())

    def bcast(self, buffer: torch.Tensor) -> None:
        """Fills `buffer` (any dtype, on the CPU, contiguous) on every rank with rank 0's."""
        self.wait_for_all()
        started = time.perf_counter()
        octets = _octets(buffer)
        for start in range(0, len(octets), _PIECE_BYTES):
            self._mpi.Bcast(octets[start : start + _PIECE_BYTES], root=0)
        self._count(started, len(octets) * (self.size - 1))

    def reduce_sum(self, buffer: torch.Tensor) -> None:
        """Adds every rank's `buffer` (int64, on the CPU) into rank 0's; the others' is undefined afterwards."""
        self._add(buffer, lambda send, receive: self._mpi.Reduce(send, receive, op=MPI.SUM, root=0))

    def allreduce_sum(self, buffer: torch.Tensor) -> None:
        """Adds every rank's `buffer` (int64, on the CPU) into everybody's."""
        self._add(buffer, lambda send, receive: self._mpi.Allreduce(send, receive, op=MPI.SUM))

    def _add(self, buffer: torch.Tensor, collective: Any) -> None:
        self.wait_for_all()
        started = time.perf_counter()
        values = buffer.numpy()
        step = _PIECE_BYTES // values.itemsize
        received = np.empty(min(step, len(values)), values.dtype)
        for start in range(0, len(values), step):
            piece = values[start : start + step]
            collective(piece, received[: len(piece)])
            piece[:] = received[: len(piece)]
        self._count(started, values.nbytes * (self.size - 1))

    def start_gather(self, send: torch.Tensor, num_bytes: Sequence[int], receive: torch.Tensor) -> Request:
        """Starts moving the first num_bytes[rank] bytes of every rank's `send` to rank 0.

        There they lie one after the other in `receive`. Buffers are uint8 on the CPU, all lengths
        multiples of 64 bytes; both buffers belong to MPI until the request is done.
        """
        blocks = [count // ALIGN_BYTES for count in num_bytes]
        starts = [sum(blocks[:rank]) for rank in range(self.size)]
        mine = [send.numpy(), blocks[self.rank], self._block]
        target = [receive.numpy(), blocks, starts, self._block] if self.is_root else None
        self.traffic.wire_bytes += sum(num_bytes[1:])
        return _MpiRequest(self, self._mpi.Igatherv(mine, target, root=0))

    def gather_rows(self, row: np.ndarray) -> np.ndarray | None:
        """One row of equal length from each rank, stacked on rank 0 (None elsewhere)."""
        self.wait_for_all()
        rows = np.empty((self.size, *row.shape), row.dtype) if self.is_root else None
        self._mpi.Gather(np.ascontiguousarray(row), rows, root=0)
        return rows

    def allgather_rows(self, row: np.ndarray) -> np.ndarray:
        """One row of equal length from each rank, stacked everywhere."""
        self.wait_for_all()
        rows = np.empty((self.size, *row.shape), row.dtype)
        self._mpi.Allgather(np.ascontiguousarray(row), rows)
        return rows

    def allgather_text(self, text: str) -> list[str]:
        """Every rank's text, in order of ranks. For start-up only: it pickles."""
        self.wait_for_all()
        texts: list[str] = self._mpi.allgather(text)
        return texts

    def abort(self, code: int) -> None:
        """Ends every rank at once."""
        self._mpi.Abort(code)

    def _sleep_until(self, request: Any) -> None:
        started = time.perf_counter()
        pause_s = _FIRST_POLL_S
        while not request.Test():
            time.sleep(pause_s)
            pause_s = min(1.3 * pause_s, _LAST_POLL_S)
        self.traffic.idle_s += time.perf_counter() - started

    def _count(self, started: float, num_bytes: int) -> None:
        self.traffic.communication_s += time.perf_counter() - started
        self.traffic.wire_bytes += num_bytes


class _MpiRequest:
    def __init__(self, comm: Comm, request: Any) -> None:
        self._comm, self._request = comm, request

    def wait(self) -> None:
        self._comm._sleep_until(self._request)


def _octets(buffer: torch.Tensor) -> np.ndarray:
    octets: np.ndarray = buffer.view(-1).view(torch.uint8).numpy()
    return octets


def all_ranks() -> Comm:
    """The communicator of the whole job."""
    return Comm(MPI.COMM_WORLD)

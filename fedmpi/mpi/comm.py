"""The collectives of a round over MPI, on flat buffers (`communicator` says what each does), and the art of waiting.

A waiting rank sleeps: on a laptop it would otherwise take a core from the ranks that train. It
polls a non-blocking barrier, at first often and then every 5 ms, and then runs the blocking
collective, because polling the collective itself moves a large message one fragment a poll.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch

from fedmpi.clock import Traffic
from fedmpi.errors import FAILED, OtherRankError, RankLossError
from fedmpi.mpi import recovery
from fedmpi.mpi.communicator import Loss, Request
from fedmpi.mpi.launch import Launcher, end_with_parent
from fedmpi.mpi.leaving import ENDS, leave, leave_after_failure
from fedmpi.mpi.library import MPI
from fedmpi.mpi.watch import SUSPENDED_AFTER_S
from fedmpi.tensors import ALIGN_BYTES

# The first polls are close together for short waits; a long one is found to be over at most 5 ms late.
_FIRST_POLL_S, _LAST_POLL_S = 2e-4, 5e-3
# A broadcast or reduction goes out in pieces: below MPI's 2^31 counts, and small enough that the
# temporary buffers of tree algorithms stay out of the memory bill.
_PIECE_BYTES = 64 * 2**20
# An MPI that fails again and again while nobody dies is not to be waited for.
_MOST_VAIN = 3
# For MPI to end the job: it asks processes to end, and then makes them.
_ABORT_S = 8.0
# For the launcher to hear of a rank's exit code, before it is told to end the job.
_END_S = 1.0

Collective = TypeVar("Collective", bound=Callable[..., Any])


def _may_lose_ranks(collective: Collective) -> Collective:
    """Where a job outlives its ranks, an error of MPI ends the communicator for all: see `recovery`."""

    @functools.wraps(collective)
    def call(self: Comm, *arguments: Any, **options: Any) -> Any:
        try:
            return collective(self, *arguments, **options)
        except MPI.Exception as error:
            if not self.recovers:
                raise
            self._end()
            raise RankLossError(str(error)) from error

    return cast(Collective, call)


@functools.cache
def _block() -> Any:
    """Returns the MPI type of an aligned block of bytes: with it counts of large messages fit into 32 bits."""
    return MPI.BYTE.Create_contiguous(ALIGN_BYTES).Commit()


class Comm:
    """The ranks of this job; after `recover` those that are left."""

    def __init__(self, mpi: Any, places: Mapping[int, tuple[str, int]], noticed: float) -> None:
        """`places` has, of each rank as the job started, its host and the lowest rank on its node. A rank that is not
        there died before it could say so, which was `noticed` then (`time.perf_counter`).
        """
        self.recovers = recovery.is_on()
        self.traffic = Traffic()
        self.started_as: int = MPI.COMM_WORLD.Get_rank()
        self.started_size: int = MPI.COMM_WORLD.Get_size()
        self.host = places[self.started_as][0]
        lost = tuple(rank for rank in range(self.started_size) if rank not in places)
        hosts = ("an unknown host",) * len(lost)
        self.lost_at_start: tuple[Loss, ...] = (Loss(lost, hosts, 0 in lost, noticed),) if lost else ()
        self._places = places
        self._launcher = Launcher.of_this_process()
        if self.recovers:  # this mpirun ends, or is ended, without ending ranks that are busy or stopped
            end_with_parent()
        self._patience_s = math.inf
        self._num_vain = 0
        self._while_waiting: Callable[[], None] = _nothing
        # Buffers of what was under way belong to MPI for ever, so its requests are kept.
        self._under_way: dict[int, Any] = {}
        self._left_behind: list[Any] = []
        self._attach(mpi)

    def _attach(self, mpi: Any) -> None:
        self._mpi = mpi
        self._noticed: float | None = None
        self._has_disagreed = False
        self.rank: int = mpi.Get_rank()
        self.size: int = mpi.Get_size()
        at_start = mpi.Get_group().Translate_ranks(list(range(self.size)), MPI.COMM_WORLD.Get_group())
        self.members = tuple(at_start)
        self.is_root = self.rank == 0
        nodes = [self._places[member][1] for member in self.members]
        self.here = tuple(rank for rank, node in enumerate(nodes) if node == nodes[self.rank])
        self.local_rank: int = self.here.index(self.rank)
        self.server_here: bool = nodes[0] == nodes[self.rank]

    @_may_lose_ranks
    def wait_for_all(self) -> None:
        self._sleep_until(self._mpi.Ibarrier())

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Begins when all ranks are here; what happens within is counted as communication."""
        self.wait_for_all()
        with self.traffic.counted("communication"):
            yield

    @_may_lose_ranks
    def bcast(self, buffer: torch.Tensor) -> None:
        octets: np.ndarray = buffer.view(-1).view(torch.uint8).numpy()
        with self._moving():
            for start in range(0, len(octets), _PIECE_BYTES):
                self._mpi.Bcast(octets[start : start + _PIECE_BYTES], root=0)
        self.traffic.moved(self.size - 1, len(octets) * (self.size - 1))

    @_may_lose_ranks
    def reduce_sum(self, buffer: torch.Tensor) -> None:
        self._add(buffer, functools.partial(self._mpi.Reduce, root=0))

    @_may_lose_ranks
    def allreduce_sum(self, buffer: torch.Tensor) -> None:
        self._add(buffer, self._mpi.Allreduce)

    def _add(self, buffer: torch.Tensor, collective: Callable[..., None]) -> None:
        values = buffer.numpy()
        step = _PIECE_BYTES // values.itemsize
        received = np.empty(min(step, len(values)), values.dtype)
        with self._moving():
            for start in range(0, len(values), step):
                piece = values[start : start + step]
                collective(piece, received[: len(piece)], op=MPI.SUM)
                piece[:] = received[: len(piece)]
        self.traffic.moved(self.size - 1, values.nbytes * (self.size - 1))

    @_may_lose_ranks
    def start_gather(self, send: torch.Tensor, num_bytes: Sequence[int], receive: torch.Tensor) -> Request:
        blocks = [count // ALIGN_BYTES for count in num_bytes]
        starts = [sum(blocks[:rank]) for rank in range(self.size)]
        mine = [send.numpy(), blocks[self.rank], _block()]
        target = [receive.numpy(), blocks, starts, _block()] if self.is_root else None
        self.traffic.moved(sum(1 for count in num_bytes[1:] if count), sum(num_bytes[1:]))
        return _MpiRequest(self, self._mpi.Igatherv(mine, target, root=0))

    @_may_lose_ranks
    def _finish(self, request: Any) -> None:
        self._sleep_until(request)
        self._under_way.pop(id(request), None)

    @_may_lose_ranks
    def gather_rows(self, row: np.ndarray) -> np.ndarray | None:
        rows = np.empty((self.size, *row.shape), row.dtype) if self.is_root else None
        with self._moving():
            self._mpi.Gather(np.ascontiguousarray(row), rows, root=0)
        self.traffic.moved(self.size - 1, row.nbytes * (self.size - 1))
        return rows

    @_may_lose_ranks
    def allgather_rows(self, row: np.ndarray) -> np.ndarray:
        rows = np.empty((self.size, *row.shape), row.dtype)
        with self._moving():
            self._mpi.Allgather(np.ascontiguousarray(row), rows)
        self.traffic.moved(self.size - 1, row.nbytes * (self.size - 1))
        return rows

    @_may_lose_ranks
    def allgather_text(self, text: str) -> list[str]:
        with self._moving():
            texts: list[str] = self._mpi.allgather(text)
        return texts

    def agree(self) -> None:
        if not self.recovers:
            return
        came_through = True
        try:
            self._sleep_until(self._mpi.Ibarrier())
        except MPI.Exception:
            came_through = False
            self._end()
        if not recovery.agreed(self._mpi, came_through, self._sleep_until):
            self._end()
            self._has_disagreed = True
            raise RankLossError("ranks did not agree that all came through")

    def recover(self) -> Loss:
        """Recovers as `Collectives.recover` says. Raises `MPI.Exception` if MPI has failed and nobody died. To shrink
        cannot be interrupted, and waits for a rank that hangs: `Watch` and `leave` set it a limit.
        """
        noticed = self._end()
        if not self._has_disagreed:
            recovery.agreed(self._mpi, False, self._sleep_until)
        before = self.members
        self._left_behind += [self._mpi, *self._under_way.values()]
        self._under_way.clear()
        with self.traffic.counted("idle"):
            self._attach(recovery.survivors(self._mpi))
        lost = tuple(member for member in before if member not in self.members)
        self._num_vain = 0 if lost else self._num_vain + 1
        if self._num_vain > _MOST_VAIN:
            raise MPI.Exception(MPI.ERR_OTHER)
        return Loss(lost, tuple(self._places[rank][0] for rank in lost), before[0] in lost, noticed)

    def _end(self) -> float:
        """Makes every other call on this communicator fail, on all ranks; when this was first done here."""
        if self._noticed is None:
            self._noticed = time.perf_counter()
            self._mpi.Revoke()
        return self._noticed

    def wait_at_most(self, seconds: float) -> None:
        self._patience_s = seconds

    def leave(self, code: int) -> NoReturn:
        """On all ranks: ends the process with this exit code, soon after the others have called it (see `leaving`)."""
        leave(self, code, self._patience_s)

    def end_all(self) -> None:
        if self.recovers:  # else it does by itself
            self._launcher.end_after(_END_S)

    def call_while_waiting(self, look: Callable[[], None] | None) -> None:
        self._while_waiting = look or _nothing

    def look(self) -> None:
        if not self.recovers and self._mpi.Iprobe(tag=ENDS):
            raise OtherRankError

    def end_in_order(self, code: int) -> None:
        if not self.recovers:
            leave_after_failure(self._mpi, code)
        self.abort(code or FAILED)

    def abort(self, code: int) -> None:
        if self.recovers:  # MPI_Abort of several ranks at once hangs now and then: then the launcher is ended
            self._launcher.end_after(_ABORT_S)
        self._mpi.Abort(code)

    def _sleep_until(self, request: Any) -> None:
        with self.traffic.counted("idle"):
            pause_s, looked = _FIRST_POLL_S, time.perf_counter()
            over = looked + self._patience_s
            while not request.Test():
                self.look()
                self._while_waiting()
                time.sleep(pause_s)
                pause_s = min(1.3 * pause_s, _LAST_POLL_S)
                before, looked = looked, time.perf_counter()
                if looked - before > SUSPENDED_AFTER_S:
                    over = looked + self._patience_s
                if looked > over:
                    raise TimeoutError(f"waited for other ranks for more than {self._patience_s:.0f} s")


def _nothing() -> None: ...


class _MpiRequest:
    def __init__(self, comm: Comm, request: Any) -> None:
        self._comm, self._request = comm, request
        comm._under_way[id(request)] = request

    def wait(self) -> None:
        self._comm._finish(self._request)


def all_ranks() -> Comm:
    """The communicator of the whole job; where it outlives its ranks, of those that have come as far as this."""
    mpi, places, noticed = MPI.COMM_WORLD if recovery.is_on() else _own(), None, math.inf
    while places is None:
        try:
            places = _places(mpi)
        except MPI.Exception:
            if not recovery.is_on():
                raise
            mpi.Revoke()
        if recovery.is_on() and not recovery.agreed(mpi, places is not None, _wait):
            noticed = min(noticed, time.perf_counter())
            mpi.Revoke()
            mpi, places = recovery.survivors(mpi), None
    assert places is not None
    return Comm(mpi, places, noticed)


@functools.cache  # a library has some thousand communicators, and a program may make as many runs
def _own() -> Any:
    """All ranks, apart from messages that a user's own code sends among them: `look` would take one for `ENDS`."""
    return MPI.COMM_WORLD.Dup()


def _places(mpi: Any) -> dict[int, tuple[str, int]]:
    """The place of each rank as the job started: its host, and the lowest rank on its node."""
    mine = MPI.COMM_WORLD.Get_rank()
    node = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    here = MPI.Get_processor_name(), int(node.bcast(mine))
    node.Free()
    return dict(mpi.allgather((mine, here)))


def _wait(request: Any) -> None:
    while not request.Test():
        time.sleep(_LAST_POLL_S)

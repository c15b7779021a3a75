"""The collectives of a round over MPI, on flat buffers (`communicator` says what each does).

A waiting rank sleeps: on a laptop it would otherwise take a core from the ranks that train. It polls a non-blocking
barrier, at first often and then every 5 ms, and then runs the blocking collective, because polling the collective
itself moves a large message one fragment a poll.

`mpirun --with-ft ulfm` lets a job live on that has lost ranks (MPI's User-Level Failure Mitigation). MPI reports a
death unevenly: of one collective, one rank gets an error of any class and another none. Hence

1. any MPI error on any rank revokes the communicator: every other call on it fails, too, so nobody waits for ever;
2. at the end of each step of a round all ranks agree that all came through it, and only then does it count:
   the ranks that are left are always in the same step;
3. a communicator ends with exactly one failed agreement, on all ranks, and is then shrunk to the ranks that live.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch

from fedmpi.clock import Traffic
from fedmpi.errors import FAILED, RankLossError
from fedmpi.mpi.communicator import Communicator, Loss, Value, Wait
from fedmpi.mpi.launch import code_in_order, end_launcher, library_version
from fedmpi.mpi.library import MPI
from fedmpi.tensors import ALIGN_BYTES

# The first polls are close together for short waits; a long one is found to be over at most 5 ms late.
_FIRST_POLL_S = 2e-4
_LAST_POLL_S = 5e-3
# A broadcast or reduction goes out in pieces: below MPI's 2^31 counts, and small enough that the
# temporary buffers of tree algorithms stay out of the memory bill.
_PIECE_BYTES = 64 * 2**20
# Give up after this many failures of MPI in a row without a lost rank.
_MAX_FRUITLESS_RECOVERIES = 3
# `mpirun --with-ft ulfm` sets it.
_OUTLIVES_RANKS = "OMPI_MCA_mpi_ft_enable"
# MPI_Abort of several ranks at once hangs now and then.
_ABORT_S = 8.0

Collective = TypeVar("Collective", bound=Callable[..., Any])


def _may_lose_ranks(collective: Collective) -> Collective:
    """Makes an error of MPI end the communicator for all ranks, where a job outlives its ranks."""

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


class Comm(Communicator):
    """The ranks of this job; after `recover` those that are left."""

    def __init__(self) -> None:
        self.recovers = os.environ.get(_OUTLIVES_RANKS, "").lower() in ("1", "true")
        self.traffic = Traffic()
        self.library = library_version()
        self.started_as: int = MPI.COMM_WORLD.Get_rank()
        self.started_size: int = MPI.COMM_WORLD.Get_size()
        node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
        first_rank = int(node.bcast(self.started_as))
        node.Free()
        self.host = MPI.Get_processor_name()
        # Of each rank the host, and the lowest rank on its node.
        self._places: list[tuple[str, int]] = MPI.COMM_WORLD.allgather((self.host, first_rank))
        # The type of an aligned block of bytes: with it counts of large messages fit into 32 bits.
        self._block = MPI.BYTE.Create_contiguous(ALIGN_BYTES).Commit()
        self._num_fruitless = 0
        # Buffers of requests that a loss has cut off belong to MPI for ever, so the requests are kept.
        self._pending: dict[int, Any] = {}
        self._abandoned: list[Any] = []
        self._attach(MPI.COMM_WORLD)

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

    @_may_lose_ranks
    def wait_for_all(self) -> None:
        self._sleep_until(self._mpi.Ibarrier())

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Begins when all ranks are here; what happens within is counted as communication."""
        self.wait_for_all()
        with self.traffic.counted("communication"):
            yield

    @contextmanager
    def _pieces(self, buffer: torch.Tensor) -> Iterator[Iterator[np.ndarray]]:
        """Begins as `_moving` does, for a flat buffer that goes out in pieces."""
        values = buffer.numpy()
        step = _PIECE_BYTES // values.itemsize
        with self._moving():
            yield (values[start : start + step] for start in range(0, len(values), step))
        self.traffic.moved(self.size - 1, values.nbytes * (self.size - 1))

    @_may_lose_ranks
    def bcast(self, buffer: torch.Tensor) -> None:
        with self._pieces(buffer.view(-1).view(torch.uint8)) as pieces:
            for piece in pieces:
                self._mpi.Bcast(piece, root=0)

    @_may_lose_ranks
    def start_bcast(self, buffer: torch.Tensor) -> Wait:
        message = [buffer.numpy(), buffer.nbytes // ALIGN_BYTES, self._block]
        if self.is_root:
            requests = [self._mpi.Isend(message, rank) for rank in range(1, self.size)]
        else:
            requests = [self._mpi.Irecv(message, 0)]
        self.traffic.moved(self.size - 1, buffer.nbytes * (self.size - 1))
        return self._waiting_for(*requests)

    @_may_lose_ranks
    def bcast_object(self, value: Value) -> Value:
        with self._moving():
            return self._mpi.bcast(value)

    @_may_lose_ranks
    def reduce_sum(self, buffer: torch.Tensor) -> None:
        with self._pieces(buffer) as pieces:
            for piece in pieces:
                self._mpi.Reduce(MPI.IN_PLACE if self.is_root else piece, piece, MPI.SUM, root=0)

    @_may_lose_ranks
    def allreduce_sum(self, buffer: torch.Tensor) -> None:
        with self._pieces(buffer) as pieces:
            for piece in pieces:
                self._mpi.Allreduce(MPI.IN_PLACE, piece, MPI.SUM)

    @_may_lose_ranks
    def start_send(self, sender: int, num_bytes: int, message: torch.Tensor, received: torch.Tensor) -> Wait:
        octets = received if self.is_root else message
        block = [octets[:num_bytes].numpy(), num_bytes // ALIGN_BYTES, self._block]
        requests = []
        if sender == self.rank == 0:
            received[:num_bytes].copy_(message[:num_bytes])
        elif self.is_root:
            requests.append(self._mpi.Irecv(block, sender))
        elif sender == self.rank:
            requests.append(self._mpi.Isend(block, 0))
        self.traffic.moved(int(sender > 0), num_bytes * (sender > 0))
        return self._waiting_for(*requests)

    def _waiting_for(self, *requests: Any) -> Wait:
        self._pending.update({id(request): request for request in requests})
        return functools.partial(self._finish, requests)

    @_may_lose_ranks
    def _finish(self, requests: Sequence[Any]) -> None:
        for request in requests:
            self._sleep_until(request)
            self._pending.pop(id(request), None)

    @_may_lose_ranks
    def allgather_object(self, value: Value) -> list[Value]:
        with self._moving():
            return self._mpi.allgather(value)

    def agree(self) -> None:
        if not self.recovers:
            return
        try:
            self.wait_for_all()
            came_through = True
        except RankLossError:
            came_through = False
        if not self._agreed(came_through):
            self._end()
            self._has_disagreed = True
            raise RankLossError("ranks did not agree that all came through")

    def recover(self) -> Loss:
        """Recovers (see `Collectives`). Raises `MPI.Exception` if MPI fails again and again and nobody died."""
        noticed = self._end()
        if not self._has_disagreed:
            self._agreed(False)
        before = self.members
        self._abandoned += [self._mpi, *self._pending.values()]
        self._pending.clear()
        with self.traffic.counted("idle"):
            # Nothing can interrupt it, and it waits for a rank that hangs: `running.losses` and `leave` set a limit.
            survivors = self._mpi.Shrink()
        survivors.Set_errhandler(MPI.ERRORS_RETURN)
        self._attach(survivors)
        lost = {member: self._places[member][0] for member in before if member not in self.members}
        self._num_fruitless = 0 if lost else self._num_fruitless + 1
        if self._num_fruitless > _MAX_FRUITLESS_RECOVERIES:
            raise MPI.Exception(MPI.ERR_OTHER)
        return Loss(lost, before[0] in lost, noticed)

    def _agreed(self, came_through: bool) -> bool:
        """Returns the same on all ranks: True if every rank came through, False if not or if one has died."""
        flag = np.array([came_through], np.intc)
        try:
            self._sleep_until(self._mpi.Iagree(flag))
        except MPI.Exception:
            return False
        return bool(flag[0])

    def _end(self) -> float:
        """Makes every other call on this communicator fail, on all ranks. Returns when this was first done here."""
        if self._noticed is None:
            self._noticed = time.perf_counter()
            self._mpi.Revoke()
        return self._noticed

    def leave(self, code: int) -> NoReturn:
        """Ends the process with this exit code, on all ranks. They meet asleep, end MPI, run what is registered for
        their end (`atexit`), and are gone. Python would take its modules apart instead, which with torch is a second of
        work for each rank: half a minute for 40 ranks on two cores. A rank that waits for longer than `patience_s` for
        one that hangs ends the job with another code.
        """
        if self.recovers:
            self._meet_survivors()
        else:
            self._meet_and_end_mpi()
            code = code and code_in_order(self.rank, code)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # it is full, or closed
                stream.flush()
        os._exit(code)

    def _meet_and_end_mpi(self) -> None:
        # MPI's own end holds the interpreter, so no thread of Python could set the limit. It prints where a rank waits.
        faulthandler.dump_traceback_later(self.patience_s, exit=True, file=2)
        self.wait_for_all()
        MPI.Finalize()
        faulthandler.cancel_dump_traceback_later()

    def _meet_survivors(self) -> None:
        """Waits for all that are left, because the launcher may end the job with the first exit code. MPI's own end is
        left out: it can wait for the dead for ever.
        """
        hurry = threading.Timer(self.patience_s, self._give_up)
        hurry.daemon = True
        hurry.start()
        while True:
            try:
                return self.agree()
            except RankLossError:
                self.recover()

    def _give_up(self) -> None:
        os.write(2, b"fedmpi: not all ranks come to the end, so this rank ends the job\n")
        self.abort(FAILED)

    def abort(self, code: int) -> NoReturn:
        if len(self.here) == self.size and end_launcher():  # all are on one host
            os._exit(code)
        faulthandler.dump_traceback_later(_ABORT_S, exit=True, file=2)
        self._mpi.Abort(code)
        os._exit(code)

    def _sleep_until(self, request: Any) -> None:
        with self.traffic.counted("idle"):
            pause_s = _FIRST_POLL_S
            while not request.Test():
                if self.while_waiting is not None:
                    self.while_waiting()
                time.sleep(pause_s)
                pause_s = min(1.3 * pause_s, _LAST_POLL_S)


def all_ranks() -> Comm:
    """Starts MPI and returns the communicator of the whole job."""
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    try:
        return Comm()
    except MPI.Exception:
        os.write(2, b"fedmpi: a rank died while the job started, so it ends; start it again\n")
        end_launcher()
        os._exit(FAILED)

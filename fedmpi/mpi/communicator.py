"""What a round sees of the ranks of its job: the calls that all ranks make together, and what each rank may do alone.

`comm.Comm` is MPI, `serial.SerialComm` one process without it. Both ends of a collective are the same line of the
caller's code, so there is one path through a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fedmpi.errors import StartupError, UserError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from fedmpi.clock import Traffic

Value = TypeVar("Value")


class Request(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Returns when this rank's part is done and its buffers may be used again."""


@dataclass(frozen=True)
class Loss:
    """Ranks that died, numbered as at the start of the job."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    server: bool
    """Whether the one that was the server is among them."""
    noticed: float
    """When this rank noticed, on `time.perf_counter`."""

    def names(self) -> str:
        """Returns the lost ranks and their hosts, in words."""
        return ", ".join(f"rank {rank} on {host}" for rank, host in zip(self.ranks, self.hosts, strict=True))

    def entries(self, round_number: int) -> list[dict[str, Any]]:
        """Returns an entry for each rank, for records and the manifest; called when recovery is over."""
        rest = {"round": round_number, "recovery_s": time.perf_counter() - self.noticed}
        return [{"rank": rank, "host": host, **rest} for rank, host in zip(self.ranks, self.hosts, strict=True)]


class Collectives(Protocol):
    """The calls that every rank makes, in the same order: never in a branch or loop that depends on the rank. In all
    but `agree` and `recover` a rank may learn of a loss: they raise `RankLossError` where a job outlives its ranks.
    """

    def wait_for_all(self) -> None:
        """A barrier in which a waiting rank sleeps."""

    def bcast(self, buffer: torch.Tensor) -> None:
        """Fills `buffer` (any dtype, on the CPU, contiguous) on every rank with rank 0's."""

    def reduce_sum(self, buffer: torch.Tensor) -> None:
        """Adds every rank's `buffer` (int64, on the CPU) into rank 0's; the others' is undefined afterwards."""

    def allreduce_sum(self, buffer: torch.Tensor) -> None:
        """Adds every rank's `buffer` (int64, on the CPU) into the `buffer` of every rank."""

    def start_gather(self, send: torch.Tensor, num_bytes: Sequence[int], receive: torch.Tensor) -> Request:
        """Starts moving the first num_bytes[rank] bytes of every rank's `send` to rank 0. There they lie one after the
        other in `receive`. Buffers are uint8 on the CPU, all lengths multiples of 64 bytes; both buffers belong to MPI
        until the request is done.
        """

    def gather_rows(self, row: np.ndarray) -> np.ndarray | None:
        """One row of equal length from each rank, stacked on rank 0 (None elsewhere)."""

    def allgather_rows(self, row: np.ndarray) -> np.ndarray:
        """One row of equal length from each rank, stacked everywhere."""

    def allgather_text(self, text: str) -> list[str]:
        """Every rank's text, in order of ranks. For start-up only: it pickles."""

    def agree(self) -> None:
        """Ends a step: raises `RankLossError` on all ranks unless all came through it. Costs nothing where a job ends
        with its ranks.
        """

    def recover(self) -> Loss:
        """After a `RankLossError`, on all ranks that are left: from here on, they are the ranks of this job."""

    def leave(self, code: int) -> int:
        """Ends the process with this exit code, soon after the others have called it; one process returns it."""


class Communicator(Collectives, Protocol):
    """The ranks of a job; after `recover`, the ranks that are left. A rank may read or call the following alone."""

    rank: int
    size: int
    is_root: bool
    local_rank: int
    """Counts the ranks on this node."""
    here: tuple[int, ...]
    """The ranks on this node, this one among them."""
    server_here: bool
    """Whether rank 0 is on this node."""
    members: tuple[int, ...]
    """The ranks that are left, numbered as at the start of the job."""
    started_as: int
    """This rank as the job started; `rank` counts the ranks that are left."""
    started_size: int
    recovers: bool
    """Whether the job outlives its ranks."""
    host: str
    library: str
    """The version of the MPI library; '' for one process without MPI."""
    traffic: Traffic
    patience_s: float
    """For how long this rank waits for others as it leaves."""

    def call_while_waiting(self, action: Callable[[], None] | None) -> None:
        """From now on calls `action` again and again while this rank waits for others; what it raises ends the wait."""

    def abort(self, code: int) -> None:
        """Ends every rank at once. The job's exit code may be 1 instead."""


def together(comm: Communicator, action: Callable[[], Value]) -> Value:
    """Calls `action` on every rank, a step that may fail by the user's doing. If it raises a `UserError` on any rank,
    all ranks raise a `StartupError` with the problems of all of them.
    """
    outcome: Value | UserError
    try:
        outcome = action()
    except UserError as error:
        outcome = error
    own = outcome.text() if isinstance(outcome, UserError) else ""
    problems = list(dict.fromkeys(filter(None, comm.allgather_text(own))))
    if problems or isinstance(outcome, UserError):
        lines = (line for problem in problems for line in problem.splitlines())
        raise StartupError("start", *lines, is_long=isinstance(outcome, UserError) and outcome.is_long)
    return outcome

"""The ranks of a job as a round sees them: the calls that all ranks make together, and what each rank may do alone.

`SerialComm` is one process, on a machine that need not have MPI; `comm.Comm` is MPI. Both ends of a collective are the
same line of the caller's code, so there is one path through a round.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fedmpi.clock import Traffic
from fedmpi.errors import StartupError, UserError

if TYPE_CHECKING:
    import torch

Value = TypeVar("Value")
Wait = Callable[[], None]
"""Returns when this rank's part of a collective is done and its buffers may be used again."""
MAX_LIMIT_S = 1e8
"""What the system's timers take; three years."""


@dataclass(frozen=True)
class Loss:
    """Ranks that died, numbered as at the start of the job, with their hosts."""

    hosts: Mapping[int, str]
    server: bool
    """Whether the one that was the server is among them."""
    noticed: float
    """When this rank noticed, on `time.perf_counter`."""

    def names(self) -> str:
        """Returns the lost ranks and their hosts, in words."""
        return ", ".join(f"rank {rank} on {host}" for rank, host in self.hosts.items())

    def entries(self, round_number: int) -> list[dict[str, Any]]:
        """Returns an entry for each rank, for records and the manifest; called when recovery is over."""
        rest = {"round": round_number, "recovery_s": time.perf_counter() - self.noticed}
        return [{"rank": rank, "host": host, **rest} for rank, host in self.hosts.items()]


class Collectives:
    """The calls that every rank makes, in the same order: never in a branch or loop that depends on the rank. In all
    but `agree` and `recover` a rank may learn of a loss: they raise `RankLossError` where a job outlives its ranks.
    For one process each is the identity.
    """

    def wait_for_all(self) -> None:
        """Waits until all ranks have called it, asleep."""

    def bcast(self, buffer: torch.Tensor) -> None:
        """Fills `buffer` (any dtype, on the CPU, contiguous) on every rank with rank 0's."""

    def start_bcast(self, buffer: torch.Tensor) -> Wait:
        """Starts to fill `buffer` (uint8, on the CPU, a multiple of 64 bytes) on every rank with rank 0's.

        Returns a function that waits for it. Rank 0 sends to each rank by itself, so a rank that takes its time holds
        up no other. The buffer belongs to MPI until that function has returned.
        """
        return lambda: None

    def bcast_object(self, value: Value) -> Value:
        """Returns rank 0's value on every rank; for a few values, because it pickles."""
        return value

    def reduce_sum(self, buffer: torch.Tensor) -> None:
        """Adds every rank's `buffer` (int64, on the CPU) into rank 0's; the others' is undefined afterwards."""

    def allreduce_sum(self, buffer: torch.Tensor) -> None:
        """Adds every rank's `buffer` (int64, on the CPU) into the `buffer` of every rank."""

    def start_send(self, sender: int, num_bytes: int, message: torch.Tensor, received: torch.Tensor) -> Wait:
        """Starts to send the first `num_bytes` of one rank's `message` to rank 0, into `received` there.

        Both are uint8 on the CPU, `num_bytes` a multiple of 64. Returns a function that waits for it, on other ranks
        for nothing. Until it has returned the buffer belongs to MPI.
        """
        received[:num_bytes].copy_(message[:num_bytes])
        return lambda: None

    def allgather_object(self, value: Value) -> list[Value]:
        """Returns every rank's value, in order of ranks; for a few values, because it pickles."""
        return [value]

    def agree(self) -> None:
        """Ends a step: raises `RankLossError` on all ranks unless all came through it. Costs nothing where a job ends
        with its ranks.
        """

    def recover(self) -> Loss:
        """Makes the ranks that are left the ranks of this job; all of them call it after a `RankLossError`."""
        raise AssertionError("one process loses nobody")

    def leave(self, code: int) -> int:
        """Ends the process with this exit code, soon after the others have called it; one process returns it."""
        return code


class Communicator(Collectives):
    """The ranks of a job; after `recover`, the ranks that are left. A rank may read or call the following alone."""

    rank: int = 0
    size: int = 1
    is_root: bool = True
    here: tuple[int, ...] = (0,)
    """The ranks on this node, this one among them."""
    members: tuple[int, ...] = (0,)
    """The ranks that are left, numbered as at the start of the job."""
    started_as: int = 0
    """This rank as the job started; `rank` counts the ranks that are left."""
    started_size: int = 1
    recovers: bool = False
    """Whether the job outlives its ranks."""
    library: str = ""
    """The version of the MPI library; '' for one process without MPI."""
    host: str
    patience_s: float = MAX_LIMIT_S
    """For how long this rank waits for others as it leaves."""
    while_waiting: Callable[[], None] | None = None
    """What this rank calls again and again while it waits for others. What it raises ends the wait."""
    traffic: Traffic

    def abort(self, code: int) -> None:
        """Ends every rank at once. The job's exit code may be 1 instead. One process raises SystemExit."""
        raise SystemExit(code)


class SerialComm(Communicator):
    """One process."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.host = platform.node()


def together(comm: Communicator, action: Callable[[], Value]) -> Value:
    """Calls `action` on every rank, a step that may fail by the user's doing. If it raises a `UserError` on any rank,
    all ranks raise a `StartupError` with the problems of all of them.
    """
    own = ""
    try:
        outcome = action()
    except UserError as error:
        own = error.text()
    problems = list(dict.fromkeys(filter(None, comm.allgather_object(own))))
    if problems:
        lines = (line for problem in problems for line in problem.splitlines())
        raise StartupError("start", *lines)
    return outcome

"""A run as one rank goes through it: what stays when ranks are lost, and how long a rank may take for its part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from fedmpi.config.schema import Config
from fedmpi.federation.plan import worker_ranks
from fedmpi.mpi.watch import Watch, end_at_once, patience_s
from fedmpi.run import advice, start
from fedmpi.run.origin import Origin
from fedmpi.run.server import Desk
from fedmpi.run.stopping import Stopping
from fedmpi.store.run_dir import RunDir

if TYPE_CHECKING:
    from fedmpi.clock import Clock
    from fedmpi.mpi.communicator import Communicator, Loss


@dataclass
class Job:
    """What was asked for, and what starting up has come to: that stays when ranks are lost."""

    config: Config
    comm: Communicator
    run_dir: str | None
    resume: bool
    origin: Origin | None
    command: Sequence[str]
    where: dict[str, str]
    stopping: Stopping
    material: start.Material | None = None
    folder: RunDir | None = None
    clock: Clock | None = None
    begun_after: int | None = None
    """The round that was the last one when training began; None before that."""
    round_number: int = 1
    """That is open."""
    rounds_are_over: bool = False
    """Whether the last one has ended; only the server knows whether it is saved."""
    takes_over: bool = False
    """Whether a rank 0 has died: its lock may outlive it for a moment."""
    untold: list[Loss] = field(default_factory=list)
    """Losses that no desk has heard of."""

    def __post_init__(self) -> None:
        self.watch = Watch(self.comm.traffic, self._hangs)

    def recover(self) -> Loss:
        """Goes on with the ranks that are left."""
        loss = self.comm.recover()
        self.untold += [loss] if loss.ranks else []
        self.takes_over |= loss.server
        return loss

    def tell(self, desk: Desk | None, round_number: int) -> None:
        """What was lost, to the desk of the server (None on the others)."""
        if desk is not None:
            desk.tell_losses(self.untold, min(round_number, self.config.rounds))
        self.untold.clear()

    def too_few(self) -> str:
        """Why the ranks that are left are to stop; empty if they are not."""
        size, least = self.comm.size, self.config.mpi.min_ranks
        return f"{size} rank{'s are' if size > 1 else ' is'} left, mpi.min_ranks is {least}" if size < least else ""

    # How long it may take.

    def begin_round(self, number: int) -> None:
        """Or what is left of it."""
        self.round_number = number
        limit_s = self.config.mpi.round_timeout_s * self.share()
        self._allow(limit_s, patience_s(limit_s))

    def take_time(self) -> None:
        """For what may be longer than a round: to set up anew, and the end. As long as MPI may take to start; without
        limit before the first round, since reading the data may take long.
        """
        limit_s, startup_s = self.config.mpi.round_timeout_s, self.config.mpi.startup_timeout_s
        if limit_s == 0 or startup_s == 0 or self.begun_after is None:
            self._allow(0.0, math.inf)
        else:
            longer_s = max(limit_s, startup_s)
            self._allow(longer_s, patience_s(limit_s + longer_s, 1))  # others may still be in the round

    def _allow(self, limit_s: float, others_s: float) -> None:
        self.watch.begin(limit_s, others_s)
        self.comm.wait_at_most(others_s)

    def share(self) -> float:
        """How much more a rank may have to do in a round than with all ranks that the job was started with.

        Somebody does all that a lost worker did: where one of five is lost, another one may have twice its work.
        """
        comm, trains = self.comm, self.config.mpi.server_trains
        started, left = (len(worker_ranks(size, server_trains=trains)) for size in (comm.started_size, comm.size))
        does_both = comm.size == 1 < comm.started_size and not trains  # the server's part, too
        return math.ceil(started / left) + does_both

    def _hangs(self, why: str, is_own: bool) -> NoReturn:
        """The end of a rank that has taken too long, or of all where others have (`Watch`)."""
        comm, where = self.comm, self.clock.where() if self.clock else "starting"
        limit = f"mpi.round_timeout_s is {self.config.mpi.round_timeout_s:g}"
        here, again = f"rank {comm.started_as} on {comm.host}, {where}", f"to go on: {self.where['resume']}"
        if not (lives_on := is_own and comm.recovers and comm.size > 1):
            advice.note_failure(self.where)
        if not is_own:
            comm.end_all()
            end_at_once(f"fedmpi: gave up on {here}\n  cause: waited for others: {why}; {limit}; the job ends\n{again}",
                        is_death=False)  # fmt: skip
        end_at_once(
            f"fedmpi: hung on {here}\n  cause: {why}; {limit}; this rank ends itself\n"
            f"{'the others go on without it; if none is left, ' if lives_on else ''}{again}",
            is_death=comm.size > 1,
        )

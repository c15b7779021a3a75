"""How long a rank may take for its part of a run, and how long it waits for others."""

from __future__ import annotations

import math
from typing import NoReturn

from fedmpi.clock import Clock
from fedmpi.config.schema import Mpi
from fedmpi.federation.assignment import worker_ranks
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.watch import Watch, end_at_once, patience_s
from fedmpi.report.terminal import wrapped
from fedmpi.running.advice import Advice


class Limits(Watch):
    """The limits of one rank, kept while the block runs. `mpi.round_timeout_s` is for a round; what may be longer has
    as long as MPI may take to start.
    """

    def __init__(self, settings: Mpi, comm: Communicator, advice: Advice) -> None:
        super().__init__(comm.traffic, self._hangs)
        self._settings, self._comm, self._advice = settings, comm, advice
        self.clock: Clock | None = None
        """Says where the rank was when it took too long."""

    def of_a_round(self) -> None:
        """Starts the limits of a round, or of the rest of it after a loss."""
        limit_s = self._settings.round_timeout_s * self.share()
        self._allow(limit_s, patience_s(limit_s))

    def of_more_than_a_round(self, *, has_trained: bool) -> None:
        """Starts the limits of set-up and shutdown. Before the first round there are none: reading data is slow."""
        limit_s, startup_s = self._settings.round_timeout_s, self._settings.startup_timeout_s
        if not has_trained or limit_s == 0 or startup_s == 0:
            self._allow(0.0, math.inf)
        else:  # others may still be in the round
            longer_s = max(limit_s, startup_s)
            self._allow(longer_s, patience_s(limit_s + longer_s, 1))

    def _allow(self, limit_s: float, others_s: float) -> None:
        self.begin(limit_s, others_s)
        self._comm.wait_at_most(others_s)

    def share(self) -> float:
        """How much more a rank may have to do in a round than with all ranks that the job was started with. The workers
        that are left do all that a lost one did: where one of five is lost, one of them may have twice its work.
        """
        comm, trains = self._comm, self._settings.server_trains
        started, left = (len(worker_ranks(size, server_trains=trains)) for size in (comm.started_size, comm.size))
        does_both = comm.size == 1 < comm.started_size and not trains  # the server's part, too
        return math.ceil(started / left) + does_both

    def _hangs(self, why: str, is_own: bool) -> NoReturn:
        """The end of a rank that has taken too long, or of all where others have (`Watch`)."""
        comm, where = self._comm, self.clock.where() if self.clock else "starting"
        limit = f"mpi.round_timeout_s is {self._settings.round_timeout_s:g}"
        here = f"rank {comm.started_as} on {comm.host}, {where}"
        again = self._advice.to_resume()
        if not (lives_on := is_own and comm.recovers and comm.size > 1):
            self._advice.note_failure()
        if not is_own:
            comm.end_all()
            given_up = f"fedmpi: gave up on {here}", f"  cause: waited for others: {why}; {limit}; the job ends"
            end_at_once("\n".join([*wrapped(*given_up), again]), is_death=False)
        hung = [f"fedmpi: hung on {here}", f"  cause: {why}; {limit}; this rank ends itself"]
        hung += ["the others continue without it; if none is left:"] * lives_on
        end_at_once("\n".join([*wrapped(*hung), again]), is_death=comm.size > 1)

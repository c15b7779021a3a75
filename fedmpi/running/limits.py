"""How long a rank may take for its part of a run, and how long it waits for others."""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import time

from fedmpi.clock import Clock
from fedmpi.config.schema import Mpi
from fedmpi.errors import FAILED
from fedmpi.federation.assignment import worker_ranks
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.watch import Watch, patience_s
from fedmpi.report.terminal import wrapped
from fedmpi.running.advice import Advice

OTHER_ENDS_S = 5.0
"""For the rank that failed first to end the job: mpirun is silent if only one rank ends it."""


class Limits(Watch):
    """The limits of one rank while the block runs. `mpi.round_timeout_s` is for a round; what may take longer has as
    long as MPI may take to start.
    """

    def __init__(self, settings: Mpi, comm: Communicator, advice: Advice) -> None:
        super().__init__(comm.traffic, self._give_up_rank)
        self._settings = settings
        self._comm = comm
        self._advice = advice
        self.clock: Clock | None = None
        """Says where the rank was when it took too long."""

    def of_a_round(self) -> None:
        """Starts the limits of a round, or of the rest of it after a loss."""
        limit_s = self._settings.round_timeout_s * self.share()
        self._allow(limit_s, patience_s(limit_s))

    def of_more_than_a_round(self, *, has_trained: bool) -> None:
        """Starts the limits of set-up and shutdown. Before the first round there are none: reading data is slow."""
        limit_s = self._settings.round_timeout_s
        startup_s = self._settings.startup_timeout_s
        if not has_trained or limit_s == 0 or startup_s == 0:
            self._allow(0.0, math.inf)
        else:  # others may still be in the round
            longer_s = max(limit_s, startup_s)
            self._allow(longer_s, patience_s(limit_s + longer_s, 1))

    def _allow(self, limit_s: float, others_s: float) -> None:
        self.begin(limit_s, others_s)
        self._comm.patience_s = others_s

    def share(self) -> float:
        """Returns how much more a rank may have to do in a round than with all ranks that the job was started with. The
        workers that are left do all that a lost one did: where one of five is lost, one may have twice its work.
        """
        trains = self._settings.server_trains
        num_started = len(worker_ranks(self._comm.started_size, server_trains=trains))
        num_left = len(worker_ranks(self._comm.size, server_trains=trains))
        share = math.ceil(num_started / num_left)
        is_server_too = self._comm.size == 1 < self._comm.started_size and not trains
        return share + 1 if is_server_too else share

    def _give_up_rank(self, why: str, is_own: bool) -> None:
        """Ends a rank that has taken too long, so that the others continue where they can; else all ranks."""
        comm = self._comm
        where = self.clock.where() if self.clock else "starting"
        what = "hung" if is_own else "gave up"
        lives_on = is_own and comm.recovers and comm.size > 1
        if not lives_on and not self._advice.note_failure():
            time.sleep(OTHER_ENDS_S)
        end = "this rank ends itself and the others continue; if none is left:" if lives_on else "the job ends"
        head = f"fedmpi: {what} on rank {comm.started_as} on {comm.host}, {where}"
        cause = f"  cause: {why}; mpi.round_timeout_s is {self._settings.round_timeout_s:g}; {end}"
        faulthandler.dump_traceback(file=2)
        text = "\n".join([*wrapped(head, cause), self._advice.to_resume()])
        os.write(2, f"{text}\n".encode(errors="replace"))
        if lives_on:
            os.kill(os.getpid(), signal.SIGKILL)  # to the launcher, an exit code would be no death
        if comm.started_size > 1:
            comm.abort(FAILED)
        os._exit(FAILED)

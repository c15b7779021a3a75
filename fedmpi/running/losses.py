"""Keeps what one rank needs when other ranks die and the launcher lets the job outlive them, and limits its time.

A lost worker costs the round in progress, which the others train again. A lost rank 0 costs what is not saved: the
lowest rank that is left becomes the server, and all start again with the newest checkpoint.

A watchdog limits how long a rank works on its part, and how long it waits for others. Waiting does not count as work,
so a hung rank ends only itself. If it cannot end itself, the ranks that wait for it end the job.
"""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import threading
import time
from dataclasses import dataclass, field, replace

from fedmpi.clock import Clock
from fedmpi.config.schema import Config, Mpi
from fedmpi.errors import FAILED, RankLossError, ServerLossError
from fedmpi.mpi.communicator import MAX_LIMIT_S, Communicator, Loss
from fedmpi.report.terminal import warn, wrapped
from fedmpi.rounds.state import Federation, Setup
from fedmpi.running import made_with, start
from fedmpi.running.folder import OTHER_ENDS_S, Advice, RunRequest, open_run_dir
from fedmpi.running.server import Server
from fedmpi.running.stopping import Stopping
from fedmpi.store.run_dir import RunDir

_MARGIN_S = 10.0
SUSPENDED_AFTER_S = 3.0
"""If the watchdog has not looked for so long, the process was suspended (Slurm does this), so all limits begin anew."""


class Limits:
    """The limits of one rank, which a thread looks at within the block: `mpi.round_timeout_s` for a round, at least
    `mpi.startup_timeout_s` for set-up after a loss and for the end of a run."""

    def __init__(self, settings: Mpi, comm: Communicator, advice: Advice) -> None:
        self._settings = settings
        self._comm = comm
        self._advice = advice
        self.clock: Clock | None = None
        """Knows where the rank was when it took too long."""
        self._part = 0.0, math.inf, math.inf
        """The rank's seconds of work before this part of the run, and the limits of its own work and of a wait."""
        self._looked_s = -math.inf
        self._awake_since_s = -math.inf
        self._has_trained = False
        self._is_over = threading.Event()

    def __enter__(self) -> Limits:
        if self._settings.round_timeout_s:
            threading.Thread(target=self._watch, name="watch", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()

    def of_a_round(self) -> None:
        """Starts the limits of a round, or of the rest of it after a loss."""
        self._has_trained = True
        share = 1
        if self._comm.size < self._comm.started_size:
            # Where one of five is lost, one of the others may have twice its work, the server's part included.
            share = math.ceil(self._comm.started_size / max(1, self._comm.size - 1))
        limit_s = self._settings.round_timeout_s * share or math.inf
        self._begin(limit_s, 2 * limit_s)  # a rank may begin late by a limit and then take one

    def of_more_than_a_round(self) -> None:
        """Starts the limits of set-up and shutdown. Before the first round there are none: reading data is slow."""
        limit_s = self._settings.round_timeout_s
        longer_s = max(limit_s, self._settings.startup_timeout_s)
        if not (self._has_trained and limit_s and self._settings.startup_timeout_s):
            longer_s = math.inf
        self._begin(longer_s, limit_s + longer_s)  # others may still be in the round

    def _begin(self, limit_s: float, others_s: float) -> None:
        """Allows this rank `limit_s` of work from now on, and `others_s` plus a margin of waiting."""
        self._part = self._worked_s(), limit_s, others_s + _MARGIN_S
        self._comm.patience_s = min(others_s + _MARGIN_S, MAX_LIMIT_S)

    def _worked_s(self) -> float:
        """Returns the seconds so far in which this rank neither waited nor moved data."""
        return self._comm.traffic.now() - self._comm.traffic.not_working_s()

    def _watch(self) -> None:
        while not self._is_over.wait(min(1.0, self._settings.round_timeout_s / 10)):
            if self.poll():
                return

    def poll(self) -> bool:
        """Returns True if a limit is over; then the rank has been given up."""
        began_s, limit_s, others_s = self._part
        now_s = self._comm.traffic.now()
        if now_s - self._looked_s > SUSPENDED_AFTER_S:
            self._awake_since_s = now_s
        self._looked_s = now_s
        awake_s = now_s - self._awake_since_s
        busy_s = min(self._worked_s() - began_s, awake_s)
        waits_s = min(self._comm.traffic.waits_for_s(), awake_s)
        if busy_s > limit_s:
            self._give_up(f"{busy_s:.0f} s of its own, with {limit_s:g} s for its share", is_own=True)
        elif waits_s > others_s:
            self._give_up(f"waited for other ranks for {waits_s:.0f} s", is_own=False)
        return busy_s > limit_s or waits_s > others_s

    def _give_up(self, why: str, *, is_own: bool) -> None:
        """Ends a rank that has taken too long, so that the others continue where they can; else all ranks."""
        comm = self._comm
        where = self.clock.where if self.clock else "starting"
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


@dataclass
class RunContext:
    """What a start of the run needs, and what an earlier start of this job has left to it."""

    config: Config
    comm: Communicator
    request: RunRequest
    stopping: Stopping
    advice: Advice
    begun_after: int | None = None
    """The round that was the last one when training began; None before that."""
    round_number: int = 1
    """The round in progress, or the last one."""
    losses: list[Loss] = field(default_factory=list)
    """Losses that no server has put on record."""
    run_dir: RunDir | None = None
    """Known to all ranks, or to none; so are the data."""
    _data: Federation | None = None

    def __post_init__(self) -> None:
        self.limits = Limits(self.config.mpi, self.comm, self.advice)
        self.resumes = self.request.resume

    def training_data(self) -> Federation:
        if self._data is None:
            data = start.load_material(self.config, self.comm)
            self.comm.agree()
            self._data = data
        return self._data

    def folder(self) -> RunDir:
        if self.run_dir is None:
            folder = open_run_dir(self.config, self.comm, self.request, resume=self.resumes)
            self.comm.agree()
            self.run_dir = folder
            self.advice.run_is_in(folder, self.comm.started_size, outlives_ranks=self.comm.recovers)
        return self.run_dir

    def recover(self) -> None:
        """Continues with the ranks that are left. Raises `ServerLossError` if the server is lost."""
        comm = self.comm
        loss = comm.recover()
        if loss.hosts:
            self.losses.append(loss)
            if comm.is_root and not self.request.quiet:
                then = f"; rank {comm.members[0]} is the server now" if loss.server else ""
                print(f"lost {loss.names()}: {comm.size} of {comm.started_size} ranks are left{then}", flush=True)
        if loss.server:
            raise ServerLossError

    def report(self, server: Server | None) -> None:
        """Lets the server (None on the other ranks) put the losses on record."""
        if server is not None:
            server.report_losses([entry for loss in self.losses for entry in loss.entries(self.round_number)])
        self.losses.clear()

    def too_few(self) -> str:
        """Returns why the ranks that are left are to stop before the next round, '' if they are not."""
        least = self.config.mpi.min_ranks
        return "" if self.comm.size >= least else f"ranks that are left: {self.comm.size}, mpi.min_ranks is {least}"


def continue_round(context: RunContext, setup: Setup, server: Server | None) -> Setup:
    """Makes the ranks that are left ready to train the round in progress again."""
    context.limits.of_more_than_a_round()
    context.report(server)
    if setup.comm.rank not in setup.workers or setup.trainers:
        return setup
    # Rank 0 is alone now, and has to train.
    alone = start.prepare(context.config, context.comm, context.folder(), context.training_data())
    if other_bits := made_with.changes(setup.computed_with, alone.computed_with):
        warn(other_bits)
    return replace(alone, show_progress=setup.show_progress, clock=setup.clock)


def end_together(context: RunContext, server: Server | None) -> None:
    """Waits until all is saved and written: MPI's own end would wait without limit for a rank that hangs. Raises
    `ServerLossError`."""
    context.limits.of_more_than_a_round()
    while True:
        try:
            context.comm.wait_for_all()
            return context.comm.agree()
        except RankLossError:
            context.recover()
            context.report(server)

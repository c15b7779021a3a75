"""What a run does about ranks that die, where the launcher lets it outlive them (`mpi.comm`).

A lost worker costs the round in progress: the other ranks train it again (`continue_run`). A lost rank 0
costs what is not saved: the lowest rank that is left becomes the server, and all start again with the newest
checkpoint, as a resumed run does (`train_through_losses`). With fewer ranks than `mpi.min_ranks` the run stops. All is
saved before a rank leaves (`end_together`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import NoReturn

from fedmpi.config.schema import Config
from fedmpi.errors import RankLossError, ServerLossError, StartupError, TooFewRanksError, UserError
from fedmpi.mpi.communicator import Communicator, Loss
from fedmpi.report.terminal import warn
from fedmpi.rounds.state import ServerState, Setup
from fedmpi.running import made_with, start
from fedmpi.running.advice import Advice
from fedmpi.running.folder import RunRequest, lock_within, open_run_dir
from fedmpi.running.limits import Limits
from fedmpi.running.server import Server
from fedmpi.running.stopping import Stopping
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir

# A process with a GPU takes a while to end; ranks of a job that has just ended may have to notice first.
_DYING_S = 20.0
_ENDING_S = 5.0


@dataclass
class RunContext:
    """How far one rank has come with a run: all that stays when ranks are lost."""

    config: Config
    comm: Communicator
    request: RunRequest
    stopping: Stopping
    advice: Advice
    begun_after: int | None = None
    """The round that was the last one when training began; None before that."""
    round_number: int = 1
    """The round in progress."""
    rounds_are_over: bool = False
    """Whether the last one has ended; only the server knows whether it is saved."""
    takes_over: bool = False
    """Whether a rank 0 has died: its lock may outlive it for a moment."""
    unreported: list[Loss] = field(default_factory=list)
    """Losses that no server has put on record."""
    _material: start.TrainingData | None = None
    known_folder: RunDir | None = None
    """The run directory, once all ranks know it."""
    made_folder: bool = False
    """Whether this job has made it; rank 0 knows. A run whose `--init-from` is refused does not leave it behind."""

    def __post_init__(self) -> None:
        self.limits = Limits(self.config.mpi, self.comm, self.advice)
        self.resumes = self.request.resume

    def note(self, *losses: Loss) -> None:
        self.unreported += [loss for loss in losses if loss.ranks]
        self.takes_over |= any(loss.server for loss in losses)

    def recover(self) -> bool:
        """Continues with the ranks that are left; whether the server is lost."""
        loss = self.comm.recover()
        self.note(loss)
        return loss.server

    def training_data(self) -> start.TrainingData:
        """Returns the data: on all ranks, or on none."""
        if self._material is None:
            training_data = start.load_material(self.config, self.comm)
            self.comm.agree()
            self._material = training_data
        return self._material

    def folder(self) -> RunDir:
        """Returns the run directory: known to all ranks, or to none."""
        if self.known_folder is None:
            self.made_folder = self.request.run_dir is None or not os.path.lexists(self.request.run_dir)
            folder = open_run_dir(self.config, self.comm, self.request, resume=self.resumes)
            self.comm.agree()
            self.known_folder = folder
            self.advice.run_is_in(folder, self.comm.started_size)
        return self.known_folder

    @property
    def patience_s(self) -> float:
        """Returns how long the lock of the run directory is waited for."""
        return _DYING_S if self.takes_over else _ENDING_S if self.resumes else 0.0

    def too_few(self) -> str:
        """Returns why the ranks that are left are to stop, '' if they are not.

        After the last round any number of ranks is enough to write the report.
        """
        size = self.comm.size
        least = self.config.mpi.min_ranks
        if size >= least or self.rounds_are_over:
            return ""
        return f"{size} rank{'s are' if size > 1 else ' is'} left, mpi.min_ranks is {least}"

    def allow_more_than_a_round(self) -> None:
        """Allows the time that setting up and ending take; without limit before the first round."""
        self.limits.of_more_than_a_round(has_trained=self.begun_after is not None)

    def report(self, server: Server | None, round_number: int) -> None:
        """Reports the losses to the server (None on the other ranks)."""
        if server is not None:
            server.report_losses(self.unreported, min(round_number, self.config.rounds))
        self.unreported.clear()


def train_through_losses(context: RunContext, start_and_train: Callable[[RunContext], bool]) -> bool:
    """Runs it to its end, again and again where a loss between rounds, or of the server, has ended it."""
    with context.limits:
        while True:
            try:
                return start_and_train(context)
            except RankLossError:  # between rounds: all start again
                context.recover()
            except ServerLossError:  # after `recover`
                pass
            except StartupError:
                _report_without_server(context)
                raise
            context.resumes |= context.known_folder is not None  # the next start resumes what this one has begun


def continue_run(context: RunContext, setup: Setup, server: Server | None, state: ServerState) -> Setup:
    """Makes the other ranks ready to train the round again, from `state`. Raises `ServerLossError` or
    `TooFewRanksError`."""
    if context.recover():
        raise ServerLossError
    context.allow_more_than_a_round()
    context.report(server, context.round_number)
    if why := context.too_few():
        _stop_early(context, server, state, why)
    if setup.comm.rank not in setup.workers or setup.trainers:
        return setup
    # Rank 0 is alone now, and has to train.
    had = setup.computed_with["server_device"]
    alone = start.prepare(context.config, context.comm, context.folder(), context.training_data(), had)
    if other_bits := made_with.changes(setup.computed_with, alone.computed_with):
        warn(other_bits)
    return replace(alone, show_progress=setup.show_progress, clock=setup.clock)


def end_together(context: RunContext, server: Server | None, round_number: int) -> None:
    """Waits until all is saved and written, because those left would else have to do it, and MPI's own end would wait
    without limit for a rank that hangs. Raises `ServerLossError`.
    """
    context.allow_more_than_a_round()
    while True:
        try:
            context.comm.wait_for_all()
            return context.comm.agree()
        except RankLossError:
            if context.recover():
                raise ServerLossError from None
            context.report(server, round_number)


def _stop_early(context: RunContext, server: Server | None, state: ServerState, why: str) -> NoReturn:
    """Ends the run before the round in progress: what is done is saved. Raises `TooFewRanksError`."""
    done = context.round_number - 1
    made_progress = context.begun_after is not None and done > context.begun_after
    if server is not None and made_progress:
        server.stop_early(done, state, why)
    end_together(context, server, context.round_number)
    raise TooFewRanksError(why, made_progress=made_progress)


def abort_run(context: RunContext, why: str) -> NoReturn:
    """Ends a run that has no server, on all ranks. Losses go on record; what is saved tells whether it makes progress.
    Raises `TooFewRanksError`.
    """
    comm = context.comm
    folder = context.known_folder
    saved = folder.last_saved() if folder and comm.is_root else 0
    saved = int(comm.allgather_text(str(saved))[0])
    made_progress = context.begun_after is not None and saved > context.begun_after
    _report_without_server(context, (saved, why) if made_progress else None, patience_s=_DYING_S)
    comm.agree()
    raise TooFewRanksError(why, made_progress=made_progress)


def _report_without_server(context: RunContext, stop: tuple[int, str] | None = None, patience_s: float = 0.0) -> None:
    """Says what was lost, where there is no server to say it, and puts it on record with the start that lost it, and
    after which round and why it stops. Not if another job has the run by now, nor if a disk is full: it is said, and
    that is no reason to end otherwise.
    """
    comm = context.comm
    folder = context.known_folder
    losses = context.unreported[:]
    context.unreported.clear()
    if not comm.is_root:
        return
    for loss in losses:
        print(f"lost {loss.names()}: {comm.size} of {comm.started_size} ranks are left", flush=True)
    if folder is None or context.begun_after is None:
        return
    with contextlib.suppress(UserError), ExitStack() as stack:
        lock_within(patience_s, stack, folder, comm)
        manifest.add_losses(folder, [entry for loss in losses for entry in loss.entries(context.round_number)])
        if stop is not None:
            manifest.add_stop(folder, *stop)

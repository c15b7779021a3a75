"""How far one rank has come with a run: all that stays when other ranks die and the launcher lets the job outlive them.

A lost worker costs the round in progress: the other ranks train it again. A lost rank 0 costs what is not saved: the
lowest rank that is left becomes the server, and all start again with the newest checkpoint, as a resumed run does. With
fewer ranks than `mpi.min_ranks` the run stops. `experiment` has the loop, `mpi.comm` finds out who is left.
"""

from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from fedmpi.config.schema import Config
from fedmpi.errors import RankLossError, ServerLossError, TooFewRanksError
from fedmpi.mpi.communicator import Communicator, Loss
from fedmpi.report.terminal import warn
from fedmpi.rounds.state import ServerState, Setup
from fedmpi.running import made_with, start
from fedmpi.running.advice import Advice
from fedmpi.running.folder import RunRequest, open_run_dir
from fedmpi.running.limits import Limits
from fedmpi.running.server import Server
from fedmpi.running.stopping import Stopping
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir


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
    """The round in progress."""
    losses: list[Loss] = field(default_factory=list)
    """Losses that no server has put on record."""
    run_dir: RunDir | None = None
    """The run directory, once all ranks know it."""
    _data: start.TrainingData | None = None

    def __post_init__(self) -> None:
        self.limits = Limits(self.config.mpi, self.comm, self.advice)
        self.resumes = self.request.resume

    def training_data(self) -> start.TrainingData:
        """Returns the data: on all ranks, or on none."""
        if self._data is None:
            data = start.load_material(self.config, self.comm)
            self.comm.agree()
            self._data = data
        return self._data

    def folder(self) -> RunDir:
        """Returns the run directory: known to all ranks, or to none."""
        if self.run_dir is None:
            folder = open_run_dir(self.config, self.comm, self.request, resume=self.resumes)
            self.comm.agree()
            self.run_dir = folder
            self.advice.run_is_in(folder, self.comm.started_size)
        return self.run_dir

    def allow_more_than_a_round(self) -> None:
        """Allows the time that setting up and ending take; without limit before the first round."""
        self.limits.of_more_than_a_round(has_trained=self.begun_after is not None)

    def recover(self) -> None:
        """Continues with the ranks that are left. Raises `ServerLossError` if the server is lost."""
        comm = self.comm
        loss = comm.recover()
        if loss.ranks:
            self.losses.append(loss)
            if comm.is_root and not self.request.quiet:
                then = f"; rank {comm.members[0]} is the server now" if loss.server else ""
                print(f"lost {loss.names()}: {comm.size} of {comm.started_size} ranks are left{then}", flush=True)
        if loss.server:
            raise ServerLossError

    def report(self, server: Server | None, round_number: int) -> None:
        """Lets the server (None on the other ranks) put the losses on record."""
        if server is not None:
            server.report_losses(self.entries(min(round_number, self.config.rounds)))
        self.losses.clear()

    def entries(self, round_number: int) -> list[dict[str, Any]]:
        """Returns the losses that no server has put on record as records and the manifest have them."""
        return [entry for loss in self.losses for entry in loss.entries(round_number)]

    def too_few(self) -> str:
        """Returns why the ranks that are left are to stop before the next round, '' if they are not."""
        size = self.comm.size
        least = self.config.mpi.min_ranks
        return "" if size >= least else f"{size} rank{'s are' if size > 1 else ' is'} left, mpi.min_ranks is {least}"

    def has_progress(self, done: int) -> bool:
        """Returns whether this start has made some of the `done` rounds."""
        return self.begun_after is not None and done > self.begun_after


def continue_round(context: RunContext, setup: Setup, server: Server | None, number: int, state: ServerState) -> Setup:
    """Makes the ranks that are left ready to train round `number` from `state`. Raises `TooFewRanksError`."""
    context.allow_more_than_a_round()
    context.report(server, number)
    if why := context.too_few():
        done = number - 1
        if server is not None and context.has_progress(done):
            server.stop_early(done, state, why)
        end_together(context, server, number)
        raise TooFewRanksError(why, made_progress=context.has_progress(done))
    if setup.comm.rank not in setup.workers or setup.trainers:
        return setup
    # Rank 0 is alone now, and has to train.
    alone = start.prepare(context.config, context.comm, context.folder(), context.training_data())
    if other_bits := made_with.changes(setup.computed_with, alone.computed_with):
        warn(other_bits)
    return replace(alone, show_progress=setup.show_progress, clock=setup.clock)


def end_together(context: RunContext, server: Server | None, number: int) -> None:
    """Waits until all is saved and written: MPI's own end would wait without limit for a rank that hangs.

    Raises `ServerLossError`.
    """
    context.allow_more_than_a_round()
    while True:
        try:
            context.comm.wait_for_all()
            return context.comm.agree()
        except RankLossError:
            context.recover()
            context.report(server, number)


def stop_without_server(context: RunContext, done: int, why: str) -> NoReturn:
    """Ends a run on all ranks before its server is made; rank 0 holds the lock. Raises `TooFewRanksError`."""
    folder = context.folder()
    if context.comm.is_root and context.begun_after is not None:
        manifest.add_losses(folder, context.entries(context.round_number))
        if context.has_progress(done):
            manifest.add_stop(folder, done, why)
    context.comm.agree()
    raise TooFewRanksError(why, made_progress=context.has_progress(done))

"""How far one rank has come with a run: all that stays when other ranks die and the launcher lets the job outlive them.

A lost worker costs the round in progress, which the others train again. A lost rank 0 costs what is not saved: the
lowest rank that is left becomes the server, and all start again with the newest checkpoint.
"""

from dataclasses import dataclass, field, replace

from fedmpi.config.schema import Config
from fedmpi.errors import RankLossError, ServerLossError
from fedmpi.mpi.communicator import Communicator, Loss
from fedmpi.report.terminal import warn
from fedmpi.rounds.state import Federation, Setup
from fedmpi.running import made_with, start
from fedmpi.running.advice import Advice
from fedmpi.running.folder import RunRequest, open_run_dir
from fedmpi.running.limits import Limits
from fedmpi.running.server import Server
from fedmpi.running.stopping import Stopping
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
            self.advice.run_is_in(folder, self.comm.started_size)
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

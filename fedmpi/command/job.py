"""One job: its ranks meet and make one run, whether the command or a program of the user's has started them."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedmpi.command.manners import describe_failure, say
from fedmpi.config.schema import Config
from fedmpi.errors import FAILED, UserError
from fedmpi.mpi.communicator import Communicator
from fedmpi.running.folder import OTHER_ENDS_S, Advice, RunRequest
from fedmpi.running.stopping import Stopping, seconds_left


@dataclass(frozen=True)
class Job:
    """The ranks that have met, and what this one needs beside the config."""

    config: Config
    comm: Communicator
    stopping: Stopping
    advice: Advice

    @classmethod
    def start(
        cls, config: Config, print_line: Callable[[str], None], new_advice: Callable[[Config], Advice] = Advice
    ) -> Job:
        """Loads torch and MPI. From here on SIGUSR1 requests a stop, which `print_line` gets a line about, but for a
        thread, in which Python handles no signals. `new_advice` says how to continue. Raises `LaunchError`."""
        left_s = seconds_left(config.mpi.time_limit_s, os.environ, time.time())
        every = max(config.evaluation.every, config.output.checkpoint_every)
        stopping = Stopping(left_s, config.mpi.spare_time_s, every)
        if threading.current_thread() is threading.main_thread():
            stopping.listen(print_line)  # loading torch takes seconds
        repeatable_cublas()
        from fedmpi.mpi.starting import world

        comm = world(config.mpi.startup_timeout_s)
        import fedmpi.experiment  # noqa: F401 - `run` needs it, and a run's clock is not to count its loading

        return cls(config, comm, stopping, new_advice(config))

    def run(self, request: RunRequest) -> bool:
        """Trains to the last round; False if the run was stopped before. Raises as `experiment.run` does."""
        from fedmpi.experiment import run

        return run(self.config, self.comm, request, stopping=self.stopping, advice=self.advice)

    def signal_message(self, number: int) -> str:
        """Returns what this rank prints when a signal ends it: '' if another rank is the server or has failed."""
        if not self.comm.is_root or self.advice.has_failed():  # after a loss another rank may be the server
            return ""
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        line = f"fedmpi: stopped by {name}; {self.advice.what_is_saved()}"
        return f"{line}\n{self.advice.how_to_continue()}" if self.advice.run_dir else line

    def end_all(self, error: BaseException) -> None:
        """Prints what has failed here first and how to continue, and ends all ranks. One process raises SystemExit."""
        if self.advice.note_failure(error):
            say(f"{describe_failure(error, self.comm)}\n{self.advice.how_to_continue(error)}")
        else:
            time.sleep(OTHER_ENDS_S)  # the rank that failed first has printed its failure, and ends the job
        self.comm.abort(error.exit_code if isinstance(error, UserError) else FAILED)


@contextmanager
def loading_for_good() -> Iterator[None]:
    """Spares the garbage collector what is made within the block: torch's half a million objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def repeatable_cublas() -> None:
    """Sets the variable with which cuBLAS gives the same bits in every run; to be called before CUDA starts."""
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

"""The command `run`, and the table of all commands.

One rank reports a mistake in the config, without traceback, before torch or MPI load. After that, every exception on
any rank ends all ranks: an uncaught one would leave the others waiting in a collective for ever.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import fedmpi
from fedmpi.running.stopping import SIGNAL, ending_with, notice_early

if __name__ == "__main__":  # what follows takes a while to load
    notice_early()

from fedmpi.command.manners import Parser, complain, report, say, say_first
from fedmpi.errors import (
    FAILED,
    TO_CONTINUE,
    ConfigError,
    LaunchError,
    StartupError,
    TooFewRanksError,
    UserError,
    counted,
)
from fedmpi.mpi.launch import check_launch, claimed

if TYPE_CHECKING:
    from fedmpi.config.schema import Config


COMMANDS = {
    "run": ("fedmpi.main", "train: one run, alone or in every rank of an mpirun"),
    "plan": ("fedmpi.command.plan", "what a run will cost; trains nothing"),
    "list": ("fedmpi.command.listing", "every method, model, data set and partition"),
    "data": ("fedmpi.data.command", "list, fetch, prepare and show data sets"),
    "check": ("fedmpi.check.__main__", "whether this machine is ready, or your own code fits"),
    "grid": ("fedmpi.results.grid", "methods x settings x seeds: runs and one report"),
    "show": ("fedmpi.results.show", "runs: how far they are, as a page, a figure, numbers"),
    "export": ("fedmpi.export.__main__", "a trained net for use without fedmpi"),
}
"""Each word of the command `fedmpi`: the module whose `main` does it, and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 0 or one of `fedmpi.errors`."""
    rank = 0  # all ranks print until the rank is known
    try:
        rank, size = claimed()
        check_launch()
        arguments = parse(sys.argv[1:] if argv is None else argv)
        config = read_config(arguments, size)
    except UserError as error:
        return report(error, rank)
    if rank == 0 and config.output.progress != "off":
        waits_for = "torch, MPI and the data" if size > 1 else "torch and the data"
        say_first(f"starting {counted(size, 'rank')}: loading {waits_for}")
        for line in arguments.repeated:
            say_first(line)
    return _run(config, arguments, rank)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line. Raises `ConfigError`."""
    parser = Parser("fedmpi run", fedmpi.__doc__)
    parser.commands = COMMANDS
    parser.add_argument("words", nargs="*", metavar="CONFIG.yaml | section.key=value")
    resume = "continue from the newest whole checkpoint in --run-dir; begins the run where there is none"
    init = "begin a new run with the newest saved state of RUN (or that of ROUND), and RUN's config"
    parser.add_argument("--run-dir", metavar="DIR", help="the run's folder; by default a fresh one under output.dir")
    parser.add_argument("--resume", action="store_true", help=resume)
    parser.add_argument("--init-from", metavar="RUN[@ROUND]", help=init)
    parser.add_argument("--version", action="version", version=f"fedmpi {fedmpi.__version__}")
    arguments = parser.parse_intermixed_args(argv)
    arguments.repeated = parser.repeated
    from fedmpi.config.load import one_config  # loads pydantic

    arguments.config, arguments.overrides = one_config(arguments.words)
    if arguments.run_dir == "":
        raise ConfigError("--run-dir", "expected a folder, got nothing")
    if arguments.resume and arguments.run_dir is None:
        raise ConfigError("command line", "--resume needs --run-dir: the directory of the run to continue")
    return arguments


def read_config(arguments: argparse.Namespace, size: int = 1) -> Config:
    """Returns the validated config. Raises `ConfigError`, for a job of too few ranks, too."""
    from fedmpi.command.given import check_ranks, config_and_origin

    given = arguments.config, arguments.overrides, arguments.run_dir, arguments.resume, arguments.init_from
    config, arguments.origin = config_and_origin(*given)
    check_ranks(config, size)
    return config


def _run(config: Config, arguments: argparse.Namespace, rank: int) -> int:
    from fedmpi.command.job import Job, loading_for_good
    from fedmpi.running.folder import RunRequest

    try:
        with loading_for_good():
            job = Job.start(config, say if rank == 0 else lambda line: None)
    except LaunchError as error:
        return report(error, rank)
    comm = job.comm
    try:
        with ending_with(job.signal_message):
            command = [sys.executable, "-m", "fedmpi.main", *sys.argv[1:]]
            is_finished = job.run(RunRequest(arguments.run_dir, arguments.resume, arguments.origin, command))
        signal.signal(SIGNAL, signal.SIG_IGN)  # another one would end a rank that is leaving
        return comm.leave(0 if is_finished else TO_CONTINUE)
    except StartupError as error:
        complain(error, comm.rank)
        if comm.is_root and comm.size < comm.started_size:  # not at the start of the job, but on the way
            say(job.advice.how_to_continue())
        return comm.leave(error.exit_code)
    except TooFewRanksError as error:
        if comm.is_root:
            say(f"fedmpi: stopped: {error}\n{job.advice.how_to_continue()}")
        return comm.leave(TO_CONTINUE if error.made_progress else FAILED)
    except BaseException as error:  # the one place where nothing may pass
        job.end_all(error)
        raise


if __name__ == "__main__":
    sys.exit(main())

"""The command: argv -> config -> a guarded run.

    mpirun -n 5 python -m fedmpi.main [CONFIG.yaml] [section.key=value ...]
        [--run-dir DIR] [--resume] [--resume-from RUN[@ROUND]] [--plan | --plan=json] [--measure] [--list] [--version]

A mistake in the config is reported by one rank, without traceback, before torch or MPI load. After
that, every exception on any rank ends all ranks: an uncaught one would leave the others waiting in
a collective for ever.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import fedmpi
from fedmpi.mpi.communicator import Communicator
from fedmpi.run.folder import Asked, Origin, refuse_inside
from fedmpi.run.stopping import EXIT_CODE, SIGNAL, Stopping, notice_early, seconds_left

if __name__ == "__main__":  # what follows takes a while to load
    notice_early()

from fedmpi.command.listing import listing
from fedmpi.command.manners import Parser, described, report, say, say_first, show
from fedmpi.config.load import load, parted
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError, LaunchError, StartupError, TooFewRanksError, UserError
from fedmpi.mpi.launch import check_launch, claimed
from fedmpi.run.advice import Advice
from fedmpi.run.interruption import Interruption

# Loading torch from a slow file system takes a while.
_LEAST_STARTUP_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code: 0, 2 for a user's mistake, 1 for a failure, 75 for a run that is to continue."""
    rank = 0  # until it is known, every rank speaks
    try:
        rank, size = claimed()
        check_launch()
        arguments = parse(sys.argv[1:] if argv is None else argv)
        if arguments.list:
            return _shown(rank, listing)
        config = read_config(arguments)
        if arguments.plan:
            return _shown(rank, lambda: _plan(config, arguments.plan, size, measures=arguments.measure))
        check_ranks(config, size)
    except UserError as error:
        return report(error, rank)
    if rank == 0 and config.output.progress != "off":
        waits_for = "torch, MPI and the data" if size > 1 else "torch and the data"
        say_first(f"starting {size} rank{'s' * (size > 1)}: loading {waits_for}")
    return _run(config, arguments, rank)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line. Raises `ConfigError`."""
    parser = Parser("python -m fedmpi.main", fedmpi.__doc__)
    parser.add_argument("words", nargs="*", metavar="CONFIG.yaml | section.key=value")
    parser.add_argument(
        "--run-dir", metavar="DIR", help="where the run lives; a fresh folder under output.dir by default"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the newest intact checkpoint in --run-dir")
    parser.add_argument(
        "--resume-from",
        metavar="RUN[@ROUND]",
        help="begin a new run after the newest whole checkpoint of RUN (or that of ROUND), with RUN's config",
    )
    parser.add_argument(
        "--plan", choices=["text", "json"], help="say what the run will cost, and train nothing; --plan is --plan=text"
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="with --plan: try some steps of each tier here, and say how long it takes",
    )
    parser.add_argument("--list", action="store_true", help="name all methods, models, data sets and partitions")
    parser.add_argument("--version", action="version", version=f"fedmpi {fedmpi.__version__}")
    # A bare --plan must not take the word after it for its value.
    arguments = parser.parse_intermixed_args(["--plan=text" if word == "--plan" else word for word in argv])
    configs, arguments.overrides = parted(arguments.words)
    if len(configs) > 1:
        raise ConfigError("command line", f"one config, or none, is allowed, got {', '.join(configs)}")
    if arguments.measure and not arguments.plan:
        raise ConfigError("command line", "--measure goes with --plan; to train, leave it out")
    if arguments.resume and arguments.run_dir is None:
        raise ConfigError("command line", "--resume needs --run-dir: the directory of the run to continue")
    if arguments.resume_from is not None and arguments.run_dir is not None:
        refuse_inside(arguments.resume_from, arguments.run_dir)
    if "" in configs:
        raise ConfigError("command line", "an empty argument; see python -m fedmpi.main --help")
    arguments.config = configs[0] if configs else None
    return arguments


def read_config(arguments: argparse.Namespace) -> Config:
    """The validated config. A resumed run takes the one it was begun with unless another is given, and a branch
    (`--resume-from`) that of its parent. Where there is none, a CONFIG or an override says that a run is to begin there
    (batch files, submitted again as they are, give both); neither is a slip in DIR's name, and must not begin another
    experiment.
    """
    path, new = arguments.config, Path(arguments.run_dir or "")
    has_begun = arguments.resume and os.path.isfile(new / "config.yaml")  # False, too, of a name that is too long
    arguments.origin, of_run = None, False
    if arguments.resume_from is not None and not has_begun:
        arguments.origin = Origin.named(arguments.resume_from)
        path, of_run = path or str(arguments.origin.run_dir.config_path), path is None
    elif path is None and has_begun:
        path, of_run = str(new / "config.yaml"), True
    elif path is None and arguments.resume and not arguments.overrides:
        problem = "holds no run to continue (no config.yaml); name the config to begin one there"
        raise ConfigError(arguments.run_dir, problem)
    config = load(path, arguments.overrides, of_run=of_run)
    if of_run and path is not None:
        _refuse_unnamed_observers(config, path, arguments.overrides)
    return config


def _refuse_unnamed_observers(config: Config, path: str, overrides: Sequence[str]) -> None:
    """Raises `ConfigError` for classes that only another run's directory names: they are not imported."""
    observers = ",".join(config.output.observers)
    if observers and not any(word.startswith(("output.observers=", "output=")) for word in overrides):
        again = f"name them again to import them (output.observers=[{observers}])"
        advice = f"{again}, or continue without (output.observers=[])"
        raise ConfigError("output.observers", f"only {path} names {observers}; {advice}")


def check_ranks(config: Config, size: int) -> None:
    """Raises `ConfigError` for a job of fewer ranks than the config wants."""
    if (least := config.mpi.min_ranks) > size:
        here = f"{size} rank{'s' * (size > 1)}"
        raise ConfigError("mpi.min_ranks", f"is {least}, but the job has {here}; start more, or allow {size}")


def _shown(rank: int, text: Callable[[], str]) -> int:
    if rank == 0:
        show(text())
    return 0


def _plan(config: Config, form: str, size: int, *, measures: bool) -> str:
    from fedmpi.data.reading import place
    from fedmpi.run.forecast import forecast, lacking_here  # loads torch

    planned = forecast(config, size)
    text = planned.text(form)
    if measures:
        from fedmpi.run import prediction

        _repeatable_cublas()
        say("measuring on this machine, which takes a minute or two: reading the data, building the nets")
        text = prediction.measured_plan(config, planned).text(form)
    if form == "text":
        text += "".join(f"\nwarning: {line}" for line in lacking_here(planned))
    if form == "text" and getattr(config.data, "reads_to_know", False):
        text += f"\n{place(config.data)} was read, because nothing else says its sizes"
    return text


def _repeatable_cublas() -> None:
    """Before CUDA starts: with these, cuBLAS gives the same bits in every run; any other value torch refuses."""
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"


def _run(config: Config, arguments: argparse.Namespace, rank: int) -> int:
    stopping = _stopping(config)
    stopping.listen(say if rank == 0 else lambda line: None)  # loading torch takes seconds
    _repeatable_cublas()
    from fedmpi.experiment import run
    from fedmpi.mpi.starting import world

    try:
        comm = world(_startup_limit_s(config, os.environ, time.time()))
    except LaunchError as error:
        return report(error, rank)
    advice = Advice(config)
    try:
        with Interruption(functools.partial(_last_words, comm, advice)):
            command = [sys.executable, "-m", "fedmpi.main", *sys.argv[1:]]
            asked = Asked(arguments.run_dir, arguments.resume, arguments.origin, command)
            is_finished = run(config, comm, asked, stopping=stopping, advice=advice)
        signal.signal(SIGNAL, signal.SIG_IGN)  # another one would end a rank that is leaving
        if not is_finished:  # the launcher ends the others as soon as one exits with a code, and they say nothing more
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return comm.leave(0 if is_finished else EXIT_CODE)
    except StartupError as error:
        code = report(error, comm.rank)
        if comm.is_root and comm.size < comm.started_size:  # not at the start of the job, but on the way
            say(advice.how_to_continue())
        return comm.leave(code)
    except TooFewRanksError as error:
        if comm.is_root:
            say(f"fedmpi: stopped: {error}\n{advice.how_to_continue()}")
        return comm.leave(EXIT_CODE if error.gets_on else 1)
    except BaseException as error:  # the one place where nothing may pass
        if advice.note_failure():
            say(f"{described(error, comm)}\n{advice.how_to_continue(error)}")
        else:  # another rank has said what to do
            say("; ".join(line.strip() for line in described(error, comm).splitlines()[:2]))
        comm.abort(error.exit_code if isinstance(error, UserError) else 1)
        raise


def _last_words(comm: Communicator, advice: Advice, number: int) -> str:
    """What the server says when a signal ends it; nothing where another rank has failed: the launcher ends all."""
    if not comm.is_root or advice.has_failed():  # asked now: after a loss another rank may be the server
        return ""
    saved, then = advice.what_is_saved(), advice.how_to_continue()
    return f"fedmpi: stopped by {signal.Signals(number).name}; {saved}" + f"\n{then}" * (then != saved)


def _startup_limit_s(config: Config, environment: Mapping[str, str], now_s: float) -> float:
    """Seconds after which ranks give up the start of MPI (0: never), while the job can still be requeued."""
    limit_s, left_s = config.mpi.startup_timeout_s, seconds_left(0.0, environment, now_s)
    if left_s is None:
        return limit_s
    return min(limit_s or math.inf, max(left_s - config.mpi.spare_time_s, _LEAST_STARTUP_S))


def _stopping(config: Config) -> Stopping:
    left_s = seconds_left(config.mpi.time_limit_s, os.environ, time.time())
    every = max(config.evaluation.every, config.output.checkpoint_every)
    return Stopping(left_s, config.mpi.spare_time_s, every)


if __name__ == "__main__":
    sys.exit(main())

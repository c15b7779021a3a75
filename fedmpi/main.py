"""The command: argv -> config -> a guarded run.

    mpirun -n 5 python -m fedmpi.main [CONFIG.yaml] [section.key=value ...]
        [--run-dir DIR] [--resume] [--resume-from RUN[@ROUND]] [--plan | --plan=json] [--list] [--version]

A mistake in the config is reported by one rank, without traceback, before torch or MPI load. After
that, every exception on any rank ends all ranks: an uncaught one would leave the others waiting in
a collective for ever.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import fedmpi
from fedmpi.run.stopping import EXIT_CODE, SIGNAL, Stopping, notice_early, seconds_left

if __name__ == "__main__":  # what follows takes a while to load
    notice_early()

from fedmpi import registry
from fedmpi.config.load import load, parted
from fedmpi.config.schema import Config, summary
from fedmpi.errors import ConfigError, DivergenceError, LaunchError, RoundError, TooFewRanksError, UserError
from fedmpi.mpi.launch import check_launch, claimed
from fedmpi.run.advice import Advice
from fedmpi.run.interruption import Interruption
from fedmpi.run.origin import Origin, refuse_inside

if TYPE_CHECKING:
    from fedmpi.mpi.communicator import Communicator
    from fedmpi.run.folder import Asked

# Ranks that stay silent about a mistake leave it to rank 0 to print: the launcher ends all ranks
# as soon as one exits with an error.
_SILENT_S = 3.0
# Loading torch from a slow file system takes a while.
_LEAST_STARTUP_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code: 0, 2 for a user's mistake, 1 for a failure, 75 for a run that is to go on."""
    rank = 0  # until it is known, everybody speaks
    try:
        rank, size = claimed()
        check_launch()
        arguments = parse(sys.argv[1:] if argv is None else argv)
        if arguments.list:
            return _list(rank)
        config = read_config(arguments)
        if arguments.plan:
            return _plan(config, arguments.plan, rank, size)
        check_ranks(config, size)
    except UserError as error:
        return _report(error, rank)
    return _run(config, arguments, rank)


class _Parser(argparse.ArgumentParser):
    """Reports as all our mistakes are reported: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError("command line", f"{message}; see python -m fedmpi.main --help")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line. Raises `ConfigError`."""
    parser = _Parser(prog="python -m fedmpi.main", description=fedmpi.__doc__, allow_abbrev=False)
    parser.add_argument("words", nargs="*", metavar="CONFIG.yaml | section.key=value")
    parser.add_argument(
        "--run-dir", metavar="DIR", help="where the run lives; a fresh folder under output.dir by default"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the newest intact checkpoint in --run-dir")
    parser.add_argument(
        "--resume-from", metavar="RUN[@ROUND]",
        help="begin a new run after the newest whole checkpoint of RUN (or that of ROUND), with RUN's config and overrides",
    )  # fmt: skip
    parser.add_argument(
        "--plan", choices=["text", "json"], help="say what the run will cost, and train nothing; --plan is --plan=text"
    )
    parser.add_argument("--list", action="store_true", help="name all methods, models, data sets and partitions")
    parser.add_argument("--version", action="version", version=f"fedmpi {fedmpi.__version__}")
    # A bare --plan must not take the word after it for its value.
    arguments = parser.parse_intermixed_args(["--plan=text" if word == "--plan" else word for word in argv])
    configs, arguments.overrides = parted(arguments.words)
    if len(configs) > 1:
        raise ConfigError("command line", f"one config, or none, is allowed, got {', '.join(configs)}")
    if arguments.resume and arguments.run_dir is None:
        raise ConfigError("command line", "--resume needs --run-dir: the directory of the run to go on with")
    if arguments.resume_from is not None and arguments.run_dir is not None:
        refuse_inside(arguments.resume_from, arguments.run_dir)
    if "" in configs:
        raise ConfigError("command line", "an empty argument; see python -m fedmpi.main --help")
    arguments.config = configs[0] if configs else None
    return arguments


def read_config(arguments: argparse.Namespace) -> Config:
    """The validated config. A resumed run takes the one it was begun with unless another is given, and a branch
    (`--resume-from`) that of its parent.

    Where there is none, a CONFIG or an override says that a run is to begin there (batch files, submitted again as
    they are, give both); neither is a slip in DIR's name, and must not begin another experiment.
    """
    path, new = arguments.config, Path(arguments.run_dir or "")
    has_begun = arguments.resume and os.path.isfile(new / "config.yaml")  # False, too, of a name that is too long
    arguments.origin = None
    if arguments.resume_from is not None and not has_begun:
        arguments.origin = Origin.named(arguments.resume_from)
        path = path or str(arguments.origin.run_dir.config_path)
    elif path is None and has_begun:
        path = str(new / "config.yaml")
    elif path is None and arguments.resume and not arguments.overrides:
        problem = "holds no run to go on with (no config.yaml); name the config to begin one there"
        raise ConfigError(arguments.run_dir, problem)
    config = load(path, arguments.overrides)
    if path is not arguments.config:
        _refuse_unnamed_observers(config, path, arguments.overrides)
    return config


def _refuse_unnamed_observers(config: Config, path: str, overrides: Sequence[str]) -> None:
    """Raises `ConfigError` for classes that only another run's directory names: they are not imported."""
    observers = ",".join(config.output.observers)
    if observers and not any(word.startswith(("output.observers=", "output=")) for word in overrides):
        advice = (
            f"name them again to import them (output.observers=[{observers}]), or go on without (output.observers=[])"
        )
        raise ConfigError("output.observers", f"only {path} names {observers}; {advice}")


def check_ranks(config: Config, size: int) -> None:
    """Raises `ConfigError` for a job of fewer ranks than the config wants."""
    if (least := config.mpi.min_ranks) > size:
        here = f"{size} rank{'s' * (size > 1)}"
        raise ConfigError("mpi.min_ranks", f"is {least}, but the job has {here}; start more, or allow {size}")


def _plan(config: Config, form: str, rank: int, size: int) -> int:
    if rank == 0:
        from fedmpi.methods import create
        from fedmpi.run.forecast import forecast
        from fedmpi.run.start import blocks, check_model, method_context

        info = config.data.info()
        check_model(config, info)
        method = create(method_context(config, info))
        _print(forecast(config, size, info, method, blocks(config)).text(form))
    return 0


def _list(rank: int) -> int:
    """Every name that a config can use, a line each."""
    titles = {"method": "methods", "model": "models", "data": "data sets", "partition": "partitions"}
    width = max(len(name) for section in titles for name in registry.names(section))
    lines = []
    for section, title in titles.items():
        lines.append(f"{title} ({section}.name)")
        summaries = {name: summary(options) for name, options in registry.built_in(section)}
        for name in registry.names(section):
            text = summaries.get(name) or f"installed: {registry.installed(section)[name].value}"
            lines.append(f"  {name + 'NAME' * name.endswith(':'):{width + 4}}  {text}")
    if rank == 0:
        _print("\n".join(lines))
    return 0


def _print(text: str) -> None:
    """Without a word when the reader has gone, as with `| head`. Raises `UserError` where there is no room."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at the end
        if not isinstance(error, BrokenPipeError):
            raise UserError("stdout", f"cannot be written: {error.strerror or error}") from error


def _report(error: UserError, rank: int) -> int:
    """Rank 0 prints; the others give it time to."""
    if rank == 0:
        with contextlib.suppress(OSError, AttributeError):  # full or closed; the exit code says it, too
            sys.stderr.write(f"{error.text()}\n")
            sys.stderr.flush()
    else:
        time.sleep(_SILENT_S)
    return error.exit_code


def _run(config: Config, arguments: argparse.Namespace, rank: int) -> int:
    stopping = _stopping(config)
    stopping.listen(_say if rank == 0 else lambda line: None)  # loading torch takes seconds
    # Before CUDA starts: with these, cuBLAS gives the same bits in every run; any other value torch refuses.
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    from fedmpi.errors import StartupError
    from fedmpi.experiment import run
    from fedmpi.mpi.serial import world

    try:
        comm = world(_startup_limit_s(config, os.environ, time.time()))
    except LaunchError as error:
        return _report(error, rank)
    advice = Advice(config)
    try:
        with Interruption(_last_words(comm, advice)):
            is_finished = run(config, comm, _asked(arguments), stopping=stopping, advice=advice)
        signal.signal(SIGNAL, signal.SIG_IGN)  # another one would end a rank that is leaving
        if is_finished:
            return comm.leave(0)
        # The launcher ends the others as soon as one exits with a code: all are ending, and say nothing more.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return comm.leave(EXIT_CODE)
    except StartupError as error:
        code = _report(error, comm.rank)
        if comm.is_root and comm.size < comm.started_size:  # not at the start of the job, but on the way
            _say(advice.how_to_go_on())
        return comm.leave(code)
    except TooFewRanksError as error:
        if comm.is_root:
            _say(f"fedmpi: stopped: {error}\n{advice.how_to_go_on()}")
        return comm.leave(EXIT_CODE if error.gets_on else 1)
    except BaseException as error:  # the one place where nothing may pass
        if advice.note_failure():
            _say(f"{describe(error, comm)}\n{advice.how_to_go_on(error)}")
        else:  # another rank has said what to do
            _say("; ".join(line.strip() for line in describe(error, comm).splitlines()[:2]))
        comm.abort(error.exit_code if isinstance(error, UserError) else 1)
        raise


def _asked(arguments: argparse.Namespace) -> Asked:
    from fedmpi.run.folder import Asked

    command = [sys.executable, "-m", "fedmpi.main", *sys.argv[1:]]
    return Asked(arguments.run_dir, arguments.resume, arguments.origin, command)


def _last_words(comm: Communicator, advice: Advice) -> Callable[[int], str]:
    """What the server says when a signal ends it; nothing if another rank has failed, for which the launcher ends all."""

    def words(number: int) -> str:
        if not comm.is_root or advice.has_failed():  # asked now: after a loss another rank may be the server
            return ""
        saved, then = advice.what_is_saved(), advice.how_to_go_on()
        return f"fedmpi: stopped by {signal.Signals(number).name}; {saved}" + f"\n{then}" * (then != saved)

    return words


def _startup_limit_s(config: Config, environment: Mapping[str, str], now_s: float) -> float:
    """Ranks that wait in vain when MPI starts (0: without limit) end while the batch job can still be requeued."""
    limit_s, left_s = config.mpi.startup_timeout_s, seconds_left(0.0, environment, now_s)
    if left_s is None:
        return limit_s
    return min(limit_s or math.inf, max(left_s - config.mpi.spare_time_s, _LEAST_STARTUP_S))


def _stopping(config: Config) -> Stopping:
    left_s = seconds_left(config.mpi.time_limit_s, os.environ, time.time())
    every = max(config.evaluation.every, config.output.checkpoint_every)
    return Stopping(left_s, config.mpi.spare_time_s, every)


def describe(error: BaseException, comm: Communicator) -> str:
    """One block: rank, host, round, client, stage and cause, then where in the code."""
    import traceback

    head = [f"rank {comm.started_as} on {comm.host}"]
    cause = error
    if isinstance(error, RoundError):
        head.append(error.where())
        cause = error.__cause__ or error
    text = str(cause).replace("\n", "\n    ")
    lines = [f"fedmpi: failed on {', '.join(head)}", f"  cause: {type(cause).__name__}: {text}"]
    # Else the cause says all: a disk is full or a learning rate too high, not a line of code wrong.
    is_ours = not isinstance(cause, (UserError, DivergenceError))
    for frame in traceback.extract_tb(cause.__traceback__)[-4:] if is_ours else ():
        lines.append(f"  at {frame.filename}:{frame.lineno} in {frame.name}")
    return "\n".join(lines)


def _say(text: str) -> None:
    """One write, so that the lines of several ranks do not mix."""
    for stream in (sys.stderr, sys.stdout):
        # A signal may have interrupted a print; a full disk has no room; a closed stream is None or says ValueError.
        with contextlib.suppress(RuntimeError, OSError, ValueError, AttributeError):
            stream.flush()
    with contextlib.suppress(OSError):  # whoever cannot say it must end the others all the same
        os.write(2, f"{text}\n".encode(errors="replace"))


if __name__ == "__main__":
    sys.exit(main())

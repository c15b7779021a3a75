"""The command: argv -> config -> a guarded run.

    mpirun -n 5 python -m fedmpi.main [CONFIG.yaml] [section.key=value ...]
        [--run-dir DIR] [--resume] [--resume-from RUN[@ROUND]] [--plan | --plan=json] [--json] [--measure]
        [--probe-bf16] [--list] [--version]

A mistake in the config is reported by one rank, without traceback, before torch or MPI load. After
that, every exception on any rank ends all ranks: an uncaught one would leave the others waiting in
a collective for ever.

Each step loads what it needs when it begins: `--version` and `--list` answer without pydantic and YAML, and a mistake
does without what only runs and plans need.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import fedmpi
from fedmpi.running.interruption import Interruption, end_early, raise_on_ctrl_c
from fedmpi.running.stopping import SIGNAL, notice_early

if __name__ == "__main__":  # what follows takes a while to load
    notice_early()
    end_early()

from fedmpi.command.manners import Parser, complain, report, run_command, say, say_first, show
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

_MEASURE = """try the parts of a round here, and say hours, memory and disk space, and of a run in float32 what
    --probe-bf16 says; a minute or two"""
_PROBE_BF16 = """say what train.precision=bf16 would save here, by steps of the dense net in float32 and in bf16, in
    turn; about a second"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code: 0 or one of `fedmpi.errors`."""
    rank = 0  # until it is known, every rank speaks
    try:
        rank, size = claimed()
        check_launch()
        arguments = parse(sys.argv[1:] if argv is None else argv)
        if arguments.list:
            from fedmpi.command.listing import listing

            return _shown(rank, listing)
        config = read_config(arguments, rank, size)
        if arguments.plan:
            return _shown(rank, lambda: _plan(config, arguments, size))
    except UserError as error:
        return report(error, rank)
    if rank == 0 and config.output.progress != "off" and not arguments.mistake:
        waits_for = "torch, MPI and the data" if size > 1 else "torch and the data"
        say_first(f"starting {counted(size, 'rank')}: loading {waits_for}")
    return _run(config, arguments, rank)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line. Raises `ConfigError`."""
    parser = Parser("python -m fedmpi.main", fedmpi.__doc__)
    parser.add_argument("words", nargs="*", metavar="CONFIG.yaml | section.key=value")
    parser.add_argument(
        "--run-dir", metavar="DIR", help="where the run lives; a fresh folder under output.dir by default"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue from the newest whole checkpoint in --run-dir; begins the run where there is none",
    )
    parser.add_argument(
        "--resume-from",
        metavar="RUN[@ROUND]",
        help="begin a new run after the newest whole checkpoint of RUN (or that of ROUND), with RUN's config",
    )
    parser.add_argument(
        "--plan", choices=["text", "json"], help="say what the run will cost, and train nothing; --plan is --plan=text"
    )
    parser.add_argument("--measure", action="store_true", help=f"with --plan: {_MEASURE}")
    parser.add_argument("--probe-bf16", action="store_true", help=f"with --plan: {_PROBE_BF16}")
    parser.add_argument("--json", action="store_true", help="with --plan: as one JSON object, the same as --plan=json")
    parser.add_argument("--list", action="store_true", help="name all methods, models, data sets and partitions")
    parser.add_argument("--version", action="version", version=f"fedmpi {fedmpi.__version__}")
    # A bare --plan must not take the word after it for its value.
    arguments = parser.parse_intermixed_args(["--plan=text" if word == "--plan" else word for word in argv])
    if not arguments.list or arguments.words:
        from fedmpi.config.load import one_config

        arguments.config, arguments.overrides = one_config(arguments.words)
    _check(arguments)
    arguments.plan = "json" if arguments.json else arguments.plan
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    if arguments.run_dir == "":
        raise ConfigError("--run-dir", "expected a folder, got nothing")
    if arguments.measure and not arguments.plan:
        raise ConfigError("command line", "--measure goes with --plan; to train, leave it out")
    if arguments.probe_bf16 and not arguments.plan:
        raise ConfigError("command line", "--probe-bf16 goes with --plan; to train, leave it out")
    if arguments.json and not arguments.plan:
        raise ConfigError("command line", "--json goes with --plan; leave it out, or write --plan --json")
    if arguments.resume and arguments.run_dir is None:
        raise ConfigError("command line", "--resume needs --run-dir: the directory of the run to continue")
    if arguments.resume_from is not None and arguments.run_dir is not None:
        from fedmpi.running.folder import refuse_inside

        refuse_inside(arguments.resume_from, arguments.run_dir)


def read_config(arguments: argparse.Namespace, rank: int = 0, size: int = 1) -> Config:
    """The validated config (`config_and_origin`). Raises `ConfigError`, for a job of too few ranks, too.

    Rank 0 alone imports observers. A mistake that only it can find is `arguments.mistake`: the others hear of it when
    all ranks have met.
    """
    from fedmpi.command.given import check_ranks, config_and_origin
    from fedmpi.config.address import renamed

    arguments.mistake, asked = None, (arguments.run_dir, arguments.resume, arguments.resume_from)
    given = arguments.config, arguments.overrides, *asked
    try:
        config, arguments.origin = config_and_origin(*given, observed=rank == 0)
    except ConfigError as error:
        if rank or size == 1 or arguments.plan:
            raise
        try:
            config, arguments.origin = config_and_origin(*given)
        except ConfigError:  # of which all ranks have found a part
            raise error from None
        arguments.mistake = error
    for word in arguments.words if rank == 0 else ():
        if address := renamed(word):
            say(f"{word} is now {address}")
    if not arguments.plan:
        check_ranks(config, size)
    return config


def _shown(rank: int, text: Callable[[], str]) -> int:
    if rank > 0:
        return 0
    raise_on_ctrl_c()
    return run_command(lambda: show(text()))


def _plan(config: Config, arguments: argparse.Namespace, size: int) -> str:
    from dataclasses import replace

    from fedmpi.command.job import loading_for_good, repeatable_cublas
    from fedmpi.data.reading import place
    from fedmpi.report.terminal import wrapped

    form = arguments.plan
    with loading_for_good():
        from fedmpi.running.forecast import forecast, lacking_here  # loads torch

    planned = forecast(config, size)
    more = [*_done_before(config, arguments), *lacking_here(planned)]
    if form == "json":
        planned = replace(planned, warnings=(*planned.warnings, *more))
    text = planned.text(form)
    if arguments.measure or arguments.probe_bf16:
        from fedmpi.running import prediction

        repeatable_cublas()
    if arguments.measure:
        say("measuring on this machine, which takes a minute or two:")
        text = prediction.measured_plan(config, planned, lambda line: say(f"  {line}")).text(form)
    elif arguments.probe_bf16:
        text = prediction.probed_plan(config, planned).text(form)
    if form == "json":
        return text
    more = [f"warning: {line}" for line in more]
    if getattr(config.data, "reads_to_know", False):
        more.append(f"{place(config.data)} was read, because nothing else says its sizes")
    return "\n".join([text, *wrapped(*more)])


def _done_before(config: Config, arguments: argparse.Namespace) -> list[str]:
    """What a plan, which is of all rounds, does not say of a run that goes on. Raises `UserError` as the run would: for
    a branch from no checkpoint or without a round of its own, and for fewer rounds than are done.
    """
    from fedmpi.running.resuming import newest_whole, refuse_fewer, refuse_no_round
    from fedmpi.store.run_dir import RunDir

    if origin := arguments.origin:
        if not (found := origin.checkpoints()):
            newest_whole(origin, found)
        done = max(number for number, _ in found)
        refuse_no_round(config, origin, done)
        return [f"the plan is of all {config.rounds} rounds; the branch makes those after round {done}"]
    if not arguments.resume:
        return []
    folder = RunDir(Path(arguments.run_dir))
    if not (done := folder.last_saved()):
        return []
    refuse_fewer(config, folder, done)
    if done >= config.rounds:
        return [f"the plan is of all {config.rounds} rounds; nothing is left to do, because {done} are done"]
    return [f"the plan is of all {config.rounds} rounds, of which {done} are done"]


def _run(config: Config, arguments: argparse.Namespace, rank: int) -> int:
    from fedmpi.command.job import Job, loading_for_good
    from fedmpi.running.folder import Asked

    try:
        with loading_for_good():
            job = Job.begun(config, say if rank == 0 else lambda line: None)
    except LaunchError as error:
        return report(error, rank)
    comm, advice = job.comm, job.advice
    try:
        with Interruption(job.last_words):
            job.refuse(arguments.mistake)
            command = [sys.executable, "-m", "fedmpi.main", *sys.argv[1:]]
            is_finished = job.run(Asked(arguments.run_dir, arguments.resume, arguments.origin, command))
        signal.signal(SIGNAL, signal.SIG_IGN)  # another one would end a rank that is leaving
        if not is_finished:  # the launcher ends the others as soon as one exits with a code, and they say nothing more
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return comm.leave(0 if is_finished else TO_CONTINUE)
    except StartupError as error:
        complain(error, comm.rank)
        if comm.is_root and comm.size < comm.started_size:  # not at the start of the job, but on the way
            say(advice.how_to_continue())
        return comm.leave(error.exit_code)
    except TooFewRanksError as error:
        if comm.is_root:
            say(f"fedmpi: stopped: {error}\n{advice.how_to_continue()}")
        return comm.leave(TO_CONTINUE if error.gets_on else FAILED)
    except BaseException as error:  # the one place where nothing may pass
        job.end_all(error)
        raise


if __name__ == "__main__":
    sys.exit(main())

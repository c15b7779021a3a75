"""The functions of `import fedmpi`: load a config, see what it will cost, make the run, open one that was made."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from fedmpi import registry
from fedmpi.command.given import check_ranks, config_and_origin, origin_of
from fedmpi.command.job import Job
from fedmpi.config.address import located
from fedmpi.config.load import ARGUMENTS, Override
from fedmpi.config.schema import NAMED_SECTIONS, Config
from fedmpi.errors import ConfigError, Interrupted, RoundError, RunDirError, StartupError, TooFewRanksError
from fedmpi.library.annotated import AConfig, APath, ConfigName, Keys, Ranks, checks_arguments
from fedmpi.library.surroundings import given_back
from fedmpi.mpi.launch import check_launch, claimed
from fedmpi.report.terminal import DEFAULT_COLUMNS, wrapped
from fedmpi.results.grid_runs import load_address
from fedmpi.running.advice import Advice
from fedmpi.running.folder import Asked
from fedmpi.running.interruption import ending_with

if TYPE_CHECKING:
    from fedmpi.library.opened import Run
    from fedmpi.running.forecast import Forecast


@checks_arguments
def load_config(name: ConfigName | None = None, overrides: Keys | None = None, /, **sections: Any) -> Config:
    """The validated config of a YAML file, with other values on top.

    `name` is a path, or the name of a config that comes with fedmpi, whatever the current folder is: `fedhm_digits`,
    `papers/fedhm@cifar10_iid/fedhm`. None is the packaged default, FedHM on digits. `overrides` maps dotted keys to
    values, and keyword arguments are whole sections or top-level keys; both are written on top, as a command's words:

        load_config("fedhm_digits", {"train.lr": 0.1}, rounds=3, method={"rank_ratio": [1, 0.5]})

    A text for a section that has names is its name: `method="fedprox"` is `method={"name": "fedprox"}`.

    Raises ConfigError with one line for each problem, all at once.
    """
    path = None if name is None else located(os.fspath(name))
    return load_address(path, _given(overrides, sections), observed=claimed()[1] == 1)


@checks_arguments
def plan(config: AConfig, ranks: Ranks | None = None) -> Forecast:
    """What a run will cost on so many ranks (None: those of this job): parameters, MACs, bytes, memory. Trains nothing.

    Its fields are the numbers of `fedmpi plan --json`; printed, it is the text of `fedmpi plan`. Raises ConfigError
    if the model cannot take the data.
    """
    from fedmpi.running.forecast import forecast  # loads torch

    return forecast(config, ranks or claimed()[1])


@checks_arguments
def run(
    config: AConfig | None = None,
    run_dir: APath | None = None,
    *,
    resume: bool = False,
    init_from: APath | None = None,
    progress: bool = True,
) -> Run:
    """Trains to the last round, in this process or, called by every rank of an mpirun, on all of them: the same bits.

    `config` None is that of the run that is resumed, or that `init_from` names, else the packaged default. `run_dir`
    None is a fresh folder under `output.dir`. `resume` continues the run in `run_dir` after the last round that is
    saved; where none is saved, or where there is no such folder, it begins the run there and says so, so that a script
    may be started again as it is. `init_from`, as `RUN` or `RUN@ROUND`, begins a new run with a saved state of
    another. `progress` False prints warnings only. Every rank gets the finished run; on one that cannot see the run
    directory, reading it fails.

    Ctrl-C, or a notebook's interrupt, raises `Interrupted`, whose text says what is saved and how to continue. Under
    mpirun it ends all ranks. SIGUSR1 and a time limit stop the run after a round: then `Run.is_finished` is False.

    Raises UserError for mistakes, RoundError for a failure in a round, whose text has round, client, stage, cause and
    the call that continues, TooFewRanksError. Where one of several ranks fails, all end. Signal handlers, environment
    variables, filters of warnings and torch's settings are as before when this returns or raises.
    """
    directory, parent = (None if place is None else os.fspath(place) for place in (run_dir, init_from))
    if resume and directory is None:
        raise ConfigError(ARGUMENTS, "resume=True needs run_dir: the directory of the run to continue")
    check_launch()
    if config is None:
        config, origin = config_and_origin(None, (), directory, resume, parent)
    else:
        origin = origin_of(directory, resume, parent)
    check_ranks(config, claimed()[1])
    asked = Asked(directory, resume, origin, [sys.executable, *sys.argv], quiet=not progress)
    with given_back():
        return _made(config, asked)


@checks_arguments
def open_run(path: APath, overrides: Keys | None = None, /, *, running: bool = False, **sections: Any) -> Run:
    """The run in a directory, finished or not. `overrides` and sections, as for `load_config`, say where its data are
    now, or name its own code again (`model={"name": "mynets:Net"}`): a directory alone makes fedmpi import nothing.

    Raises RunDirError where no run has begun, where one is still running (unless `running`: then what is saved so far
    is read), and where its config is damaged.
    """
    from fedmpi.library.opened import Run

    found = Run(path, _given(overrides, sections))
    if (state := found.state) == "running" and not running:
        advice = "wait for its end, or read what is saved so far with open_run(..., running=True)"
        raise RunDirError(os.fspath(path), f"is {state}; {advice}")
    return found


class CallAdvice(Advice):
    """Advises calls of `fedmpi` in place of commands; `config` in them is the one that the program has given."""

    _resume_alone = "resume=True alone"

    def resume_command(self, lr: float | None = None, *, moved_to: str = "") -> str:
        folder = moved_to or str(self._folder())
        return f"fedmpi.run({self._config(folder, lr)}, run_dir={folder!r}, resume=True)"

    def init_command(self, lr: float) -> str:
        folder = str(self._folder())
        return f"fedmpi.run({self._config(folder, lr)}, init_from={folder!r})"

    def in_lines(self, text: str) -> str:
        """A call that would make the line longer than 80 columns stands below it: a backslash is the shell's."""
        if len(text) <= DEFAULT_COLUMNS:
            return text
        said, _, call = text.partition(": ")
        return "\n".join([*wrapped(f"{said}:"), f"  {call}"])

    def _config(self, folder: str, lr: float | None) -> str:
        """The caller's, or the run's with another learning rate."""
        if lr is None:
            return "config"
        return f"fedmpi.load_config({f'{folder}/config.yaml'!r}, {{'train.lr': {lr:.3g}}})"


def _made(config: Config, asked: Asked) -> Run:
    from fedmpi.library.opened import Run

    job = Job.begun(config, lambda line: print(line, file=sys.stderr, flush=True), CallAdvice)
    is_alone = job.comm.started_size == 1
    listens = not is_alone and threading.current_thread() is threading.main_thread()
    try:
        with ending_with(job.last_words) if listens else nullcontext():
            job.run(asked)
        if not job.comm.recovers:
            job.comm.wait_for_all()  # until rank 0 has closed the run directory
    except (StartupError, TooFewRanksError):  # on all ranks
        raise
    except KeyboardInterrupt:
        raise Interrupted(_how_to_continue(job)) from None
    except BaseException as error:
        if not is_alone:
            job.end_all(error)
        elif job.advice.run_dir is not None:
            job.advice.note_failure(error)
            advice = job.advice.how_to_continue(error)
            if isinstance(error, RoundError):
                error.advice = advice  # its text has it
            else:
                print(advice, file=sys.stderr, flush=True)
        raise
    assert job.advice.run_dir is not None
    return Run(job.advice.run_dir.path, [(f"{key}.name", name) for key, name in registry.named_in_full(config)])


def _how_to_continue(job: Job) -> str:
    saved, run_dir = job.advice.what_is_saved(), job.advice.run_dir
    if run_dir is None or not run_dir.holds_run():
        return saved
    return f"{saved}; {job.advice.to_resume()}"


def _given(overrides: Mapping[str, Any] | None, sections: Mapping[str, Any]) -> list[Override]:
    """`method="fedprox"` is `method.name=fedprox`: a section that has names is chosen by one."""
    given = [*(overrides or {}).items(), *sections.items()]
    return [
        (f"{key}.name", value) if key in NAMED_SECTIONS and isinstance(value, str) else (key, value)
        for key, value in given
    ]

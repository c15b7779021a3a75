"""The functions of `import fedmpi`: load a config, see what it will cost, make the run, open one that was made."""

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pydantic import InstanceOf, PositiveInt, validate_call

from fedmpi.command.given import check_ranks, config_and_origin, origin_of
from fedmpi.command.job import Job
from fedmpi.command.manners import say
from fedmpi.config.address import located
from fedmpi.config.load import ARGUMENTS, Override
from fedmpi.config.schema import NAMED_SECTIONS, Config, named_in_full
from fedmpi.config.yaml_text import dotted
from fedmpi.errors import ConfigError, Interrupted, RoundError, RunDirError, StartupError, TooFewRanksError
from fedmpi.library.run import Run, StrPath, as_a_command
from fedmpi.mpi.launch import check_launch, claimed
from fedmpi.results.grid_file import load_address
from fedmpi.running.folder import Advice, RunRequest
from fedmpi.running.forecast import Forecast, forecast
from fedmpi.running.stopping import ending_with


@as_a_command()
@validate_call
def load_config(name: StrPath | None = None, overrides: Mapping[str, Any] | None = None, /, **sections: Any) -> Config:
    """Returns the validated config of a YAML file, with other values on top.

    `name` is a path, or the name of a config that comes with fedmpi: `fedhm_digits`, `papers/fedhm@cifar10_iid/fedhm`.
    None is the packaged default, FedHM on digits. `overrides` maps dotted keys to values; keyword arguments are whole
    sections or top-level keys, and a text for a section that has names is its name (`method="fedprox"`):

        load_config("fedhm_digits", {"train.lr": 0.1}, rounds=3, method={"rank_ratio": [1, 0.5]})

    Raises ConfigError with one line for each problem, all at once.
    """
    path = None if name is None else located(os.fspath(name))
    return load_address(path, _overrides(overrides, sections))


@as_a_command()
@validate_call
def plan(config: InstanceOf[Config], ranks: PositiveInt | None = None) -> Forecast:
    """Returns what a run will cost on so many ranks (None: those of this job): parameters, MACs, bytes, memory.

    Trains nothing. Printed, it is the text of `fedmpi plan`. Raises ConfigError if the model cannot take the data.
    """
    return forecast(config, ranks or claimed()[1])


@as_a_command()
@validate_call
def run(
    config: InstanceOf[Config] | None = None,
    run_dir: StrPath | None = None,
    *,
    resume: bool = False,
    init_from: StrPath | None = None,
    progress: bool = True,
) -> Run:
    """Trains to the last round, in this process or, called by every rank of an mpirun, on all of them: the same bits.

    `config` None is that of the run that is resumed, or that `init_from` names, else the packaged default. `run_dir`
    None is a fresh folder under `output.dir`. `resume` continues the run in `run_dir` after the last round that is
    saved; where none is, it begins the run there and says so. `init_from`, as `RUN` or `RUN@ROUND`, begins a new run
    with a saved state of another. `progress` False prints warnings only. Every rank gets the finished run.

    SIGUSR1 and a time limit stop the run after a round: then `Run.is_finished` is False. Raises Interrupted for Ctrl-C
    or a notebook's interrupt, UserError for mistakes, RoundError for a failure in a round, and TooFewRanksError. Where
    one of several ranks fails, all end.
    """
    directory = None if run_dir is None else os.fspath(run_dir)
    other = None if init_from is None else os.fspath(init_from)
    if resume and directory is None:
        raise ConfigError(ARGUMENTS, "resume=True needs run_dir: the directory of the run to continue")
    check_launch()
    if config is None:
        config, origin = config_and_origin(None, (), directory, resume, other)
    else:
        origin = origin_of(directory, resume, other)
    check_ranks(config, claimed()[1])
    return _train(config, RunRequest(directory, resume, origin, [sys.executable, *sys.argv], quiet=not progress))


@as_a_command()
@validate_call
def open_run(
    path: StrPath, overrides: Mapping[str, Any] | None = None, /, *, running: bool = False, **sections: Any
) -> Run:
    """Opens the run in a directory, finished or not.

    `overrides` and sections, as for `load_config`, say where its data are now, or name its own code again
    (`model={"name": "mynets:Net"}`): a directory alone makes fedmpi import nothing. Raises RunDirError where no run has
    begun, where its config is damaged, and where it is still running, unless `running`.
    """
    opened = Run(Path(path).absolute(), _overrides(overrides, sections))
    _ = opened.values  # raises where there is no run, or a damaged one
    if opened.state == "running" and not running:
        advice = "wait for its end, or read what is saved so far with open_run(..., running=True)"
        raise RunDirError(os.fspath(path), f"is running; {advice}")
    return opened


class CallAdvice(Advice):
    """Advises calls of `fedmpi` in place of commands; `config` in them is the one that the program has given."""

    def resume_command(self, lr: float | None = None, *, in_new_run: bool = False) -> str:
        assert self.run_dir is not None
        config = "config"
        if lr is not None:
            config = f"fedmpi.load_config({str(self.run_dir.config_path)!r}, {{'train.lr': {lr:.3g}}})"
        path = str(self.run_dir.path)
        begins = f"init_from={path!r}" if in_new_run else f"run_dir={path!r}, resume=True"
        return f"fedmpi.run({config}, {begins})"


def _train(config: Config, request: RunRequest) -> Run:
    job = Job.start(config, say, CallAdvice)
    advice = job.advice
    is_alone = job.comm.started_size == 1
    listens = not is_alone and threading.current_thread() is threading.main_thread()
    try:
        with ending_with(job.signal_message) if listens else nullcontext():
            job.run(request)
        if not job.comm.recovers:
            job.comm.wait_for_all()  # until rank 0 has closed the run directory
    except (StartupError, TooFewRanksError):  # on all ranks
        raise
    except KeyboardInterrupt:
        then = f"; {advice.to_resume()}" if advice.run_dir and advice.run_dir.holds_run() else ""
        raise Interrupted(f"{advice.what_is_saved()}{then}") from None
    except BaseException as error:
        if not is_alone:
            job.end_all(error)
        advice.note_failure(error)
        if isinstance(error, RoundError):
            error.advice = advice.how_to_continue(error)
        raise
    assert advice.run_dir is not None
    named = named_in_full(config.to_dict(), trains=False)
    return Run(advice.run_dir.path, [(dotted(key), name) for key, name in named.items()])


def _overrides(overrides: Mapping[str, Any] | None, sections: Mapping[str, Any]) -> list[Override]:
    """Returns pairs of key and value; `method="fedprox"` is `method.name=fedprox`."""
    pairs: list[Override] = []
    for key, value in [*(overrides or {}).items(), *sections.items()]:
        is_name = key in NAMED_SECTIONS and isinstance(value, str)
        pairs.append((f"{key}.name", value) if is_name else (key, value))
    return pairs

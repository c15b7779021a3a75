"""The run directory of a start: which one it is, and how rank 0 takes it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fedmpi.config import address, yaml_text
from fedmpi.config.fields import AT_ROUND
from fedmpi.config.load import DEFAULT_NAME, Override, load
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError, RunDirError
from fedmpi.mpi.communicator import Communicator, together
from fedmpi.store.files import write_text
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir

_OPTION = "--init-from"
# A process with a GPU takes a while to end; ranks of a job that has just ended may have to notice first.
_DYING_S = 20.0
_ENDING_S = 5.0


@dataclass(frozen=True)
class Origin:
    """The run, and the number of the round, that a new run takes its first state from."""

    run_dir: RunDir
    round: int | None = None
    """None stands for the newest whole checkpoint."""

    @classmethod
    def named(cls, text: str, new_run: str | None = None) -> Origin:
        """Reads `RUN` or `RUN@12`. Raises ConfigError if there is no such run, or if `new_run` lies inside it."""
        match = None if Path(text).is_dir() else AT_ROUND.fullmatch(text)
        folder = Path(match[1] if match else text).resolve()
        origin = cls(RunDir(folder), int(match[2]) if match else None)
        if not origin.run_dir.has_config():
            raise ConfigError(_OPTION, f"{folder} holds no run (no config.yaml); name a run's folder, or FOLDER@ROUND")
        if new_run is not None and Path(new_run).resolve().is_relative_to(folder):
            raise ConfigError(_OPTION, f"--run-dir={new_run} is not outside {folder}, which is only read; take another")
        return origin


def config_of(folder: RunDir, overrides: Sequence[Override] = (), *, trains: bool = False) -> Config:
    """Returns the config of a run, as `config.load` reads it; `trains` as there. Raises ConfigError."""
    return load(str(folder.config_path), overrides, of_run=True, trains=trains)


@dataclass(frozen=True)
class RunRequest:
    """The words of the command beside the config."""

    run_dir: str | None = None
    """None for a fresh folder under `output.dir`."""
    resume: bool = False
    origin: Origin | None = None
    """The saved round of another run that this one takes its first state from."""
    command: Sequence[str] = ()
    quiet: bool = False
    """Whether nothing but warnings is printed."""


def open_run_dir(config: Config, comm: Communicator, request: RunRequest, *, resume: bool) -> RunDir:
    """Opens the run directory, or makes it, on rank 0; all ranks know it."""

    def open_it() -> str:
        if not comm.is_root:
            return ""
        if request.run_dir is not None:
            return str(RunDir.open_for(request.run_dir, resume=resume).path.resolve())
        return str(RunDir.new(config.output.dir, _label(config, request.origin)).path.resolve())

    return RunDir(Path(comm.bcast_object(together(comm, open_it))))


def _label(config: Config, origin: Origin | None) -> str:
    """Names a fresh folder after the run that its first state is of, the config's file, or method, model and data."""
    if origin is not None:
        return f"{origin.run_dir.path.name}-continued"
    named = address.label(config.where)
    if config.where == DEFAULT_NAME:
        named = "-".join(section.name.rpartition(":")[2] for section in (config.method, config.model, config.data))
    return f"{named}-seed{config.seed}"


def claim(
    stack: ExitStack, folder: RunDir, config: Config, comm: Communicator, request: RunRequest, *, resumes: bool
) -> RunLock:
    """Locks the run directory until `stack` closes, on rank 0, and writes which run it is, so that it can be resumed. A
    run that resumes waits for another one to end. Raises `RunDirError`."""
    patience_s = _DYING_S if comm.size < comm.started_size else _ENDING_S
    until_s = time.monotonic() + (patience_s if resumes else 0.0)
    lock = None
    while lock is None:
        try:
            lock = stack.enter_context(RunLock(folder))
        except RunDirError:
            if time.monotonic() >= until_s:
                raise
            with comm.traffic.counted("idle"):
                time.sleep(0.1)
    if not resumes:
        folder.refuse_run()  # another may have come and gone since it was opened
    folder.failure_path.unlink(missing_ok=True)
    if request.origin is None and not folder.config_path.exists():  # else it is a run once its first state is saved
        write_text(folder.config_path, yaml_text.dump(config.to_dict()))
    return lock


def slurm_job() -> str:
    """Returns the batch job's number (of one task of an array: its own), for the manifest; '' outside Slurm."""
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{os.environ.get('SLURM_ARRAY_JOB_ID')}_{task}" if task else os.environ.get("SLURM_JOB_ID", "")

"""The run directory of a start: which one it is, and how rank 0 takes it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmpi.config import address, yaml_text
from fedmpi.config.schema import Config
from fedmpi.errors import RunDirError
from fedmpi.mpi.together import together
from fedmpi.run.origin import Origin
from fedmpi.store.files import write_text
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir

if TYPE_CHECKING:
    from fedmpi.mpi.communicator import Communicator


@dataclass(frozen=True)
class Asked:
    """What the command asks for beside the config."""

    run_dir: str | None = None
    """None for a fresh folder under `output.dir`."""
    resume: bool = False
    origin: Origin | None = None
    """The checkpoint of another run that this one begins from."""
    command: Sequence[str] = ()


def open_run_dir(config: Config, comm: Communicator, asked: Asked, *, resume: bool) -> RunDir:
    """The run directory, opened (or made) by rank 0 and known to all."""

    def open_it() -> str:
        if not comm.is_root:
            return ""
        if asked.run_dir is not None:
            return str(RunDir.open_for(asked.run_dir, resume=resume).path.resolve())
        named = asked.origin.label() if asked.origin else f"{address.label(config.where)}-seed{config.seed}"
        return str(RunDir.new(config.output.dir, named).path.resolve())

    return RunDir(Path(comm.allgather_text(together(comm, open_it))[0]))


def take(folder: RunDir, config: Config, *, resumes: bool, is_branch: bool) -> None:
    """Rank 0 holds the lock: says at once which run it is, so that whatever happens next can be resumed."""
    if not resumes:
        folder.refuse_run()  # another may have come and gone since it was opened
    folder.failure_path.unlink(missing_ok=True)
    if not is_branch and not folder.config_path.exists():  # a branch is a run only once it has its checkpoint
        write_text(folder.config_path, yaml_text.dump(config.to_dict()))


def lock_within(patience_s: float, stack: ExitStack, folder: RunDir, comm: Communicator) -> RunLock:
    """The lock until `stack` closes; waits for one that is held. Raises `RunDirError`."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return stack.enter_context(_lock(folder))
        except RunDirError:
            if time.monotonic() >= until:
                raise
            with comm.traffic.waiting():
                time.sleep(0.1)


def _lock(folder: RunDir) -> RunLock:
    return RunLock(folder, job=_job_name(), warn=lambda line: print(f"warning: {line}", flush=True))


def slurm_job() -> str:
    """The batch job's number (of one task of an array: its own), for the manifest; empty outside Slurm."""
    array, task = (os.environ.get(name, "") for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"))
    return f"{array}_{task}" if array or task else os.environ.get("SLURM_JOB_ID", "")


def _job_name() -> str:
    """For the lock, which a rank that takes over on another host may take: the batch job, or the launcher's own."""
    return slurm_job() or os.environ.get("PMIX_NAMESPACE", "")

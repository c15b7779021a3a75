"""The small federation of `fedmpi.check`, for tests."""

from pathlib import Path
from typing import Any

from fedmpi.check.small import SMALL, Finished, finished, run_all, small_config, small_setup
from fedmpi.mpi.communicator import SerialComm
from fedmpi.train_round import train_round as one_round

__all__ = ["SMALL", "Finished", "finished", "one_round", "run_all", "small_config", "small_setup"]


def run_alone(folder: Path, *overrides: str, **options: Any) -> Finished:
    """Makes the run in this process; `options` are those of `run_all`."""
    run_all(small_config(*overrides), SerialComm(), folder, **options)
    return finished(folder)


def undisturbed(folder: Path, *overrides: str) -> Finished:
    """What these overrides come to in one go, in this process."""
    return run_alone(folder / "undisturbed", *overrides)

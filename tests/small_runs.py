"""The small federation of `fedmpi.check`, for tests, and the tests' own method in it."""

from pathlib import Path

from fedmpi.check.small import SMALL, Finished, finished, run_all, small_config, small_setup
from fedmpi.mpi.serial import SerialComm
from fedmpi.train_round import train_round as one_round

__all__ = ["SMALL", "TOY", "Finished", "finished", "one_round", "run_all", "small_config", "small_setup", "undisturbed"]

TOY = ("method.name=toy_methods:Toy", "method.widths=[1,0.5,0.25]", "clients.tier_blocks=[3,3,2]")


def undisturbed(folder: Path, *overrides: str) -> Finished:
    """What these overrides come to in one go, in this process."""
    run_all(small_config(*overrides), SerialComm(), folder / "undisturbed")
    return finished(folder / "undisturbed")

"""The small federation in which things are tried: its config, its set-up in this process, and the results of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.experiment import run
from fedmpi.mpi.communicator import Communicator, SerialComm
from fedmpi.report.records import NOT_RESULTS, read_records
from fedmpi.rounds.state import Setup
from fedmpi.running import start
from fedmpi.running.folder import Origin, RunRequest
from fedmpi.store import checkpoint
from fedmpi.store.hdf5 import digest_of
from fedmpi.store.run_dir import RunDir

SMALL = """
    data.name=synthetic data.shape=[1,8,8] data.classes=4 data.num_train=120 data.num_test=48
    model.width=0.125 model.blocks=[1,1] clients.count=8 clients.per_round=4 rounds=3
    train.local_epochs=1 train.batch_size=8 train.lr=0.05 train.schedule.milestones=[1]
    evaluation.batch_size=16 output.progress=off output.tensorboard=false output.report=false
""".split()
"""A ResNet of 8 and 16 channels on 120 images: a round takes some 50 ms."""


def small_words(*overrides: str) -> list[str]:
    """Returns `SMALL` with these overrides on top; one that gives a section another name has that section to itself."""
    renamed = tuple(f"{override.partition('.name=')[0]}." for override in overrides if ".name=" in override)
    return [*(line for line in SMALL if not line.startswith(renamed)), *overrides]


def small_config(*overrides: str) -> Config:
    """Returns the config of `small_words`."""
    return load(None, small_words(*overrides))


def small_setup(folder: Path, *overrides: str) -> Setup:
    """Sets up a run in `folder`, in this process alone."""
    return start.prepare(small_config(*overrides), SerialComm(), RunDir(folder))


@dataclass(frozen=True)
class Finished:
    """The part of a finished run that must not depend on ranks, exchange, interruptions or time."""

    server: str
    memories: Mapping[int, tuple[int, str]]
    records: Sequence[Mapping[str, Any]]


def finished(folder: Path) -> Finished:
    """Reads it from the newest checkpoint and the records, every round of which must be there once."""
    warnings: list[str] = []
    snapshot = checkpoint.load_newest_intact(RunDir(folder), warnings.append)
    assert snapshot is not None and not warnings, f"{folder}: {warnings or 'no checkpoint'}"
    records = read_records(RunDir(folder))
    assert [record["round"] for record in records] == list(range(1, snapshot.round + 1))
    for record in records:
        for key in NOT_RESULTS & record.keys():
            del record[key]
    return Finished(digest_of(snapshot.server), dict(snapshot.clients), records)


def run_all(
    config: Config, comm: Communicator, folder: Path, *, resume: bool = False, origin: Origin | None = None
) -> None:
    """Makes the whole run, as the command would do it."""
    run(config, comm, RunRequest(str(folder), resume, origin, ("test",)))

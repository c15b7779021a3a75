"""A saved round of a finished or running run, with everything that its test had: read, never written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedmpi.config.load import Override
from fedmpi.errors import RunDirError
from fedmpi.mpi.communicator import SerialComm
from fedmpi.report.records import Best, read_records
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import Published, ServerState, Setup
from fedmpi.running import resuming, start
from fedmpi.running.folder import config_of
from fedmpi.store import checkpoint
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.run_dir import RunDir

Round = Literal["last", "best"] | int
"""A saved round: the last one, the one of the highest mean accuracy, or by its number."""


@dataclass(frozen=True)
class SavedRound:
    """The run as a single process would test it after this round, on the CPU."""

    path: Path
    setup: Setup
    snapshot: Snapshot
    record: Mapping[str, Any]
    """The round's line of rounds.jsonl; empty where that is lost."""
    state: ServerState
    published: Published

    @property
    def number(self) -> int:
        return self.snapshot.round


def saved_round(run: str | Path, which: str = "last", overrides: Sequence[Override] = ()) -> SavedRound:
    """Opens round `which` (best, last or a number) of the run in the folder `run`.

    `overrides` are as for `config.load`: the run's own code, named again (`model.name=mynets:Net`), or where its
    data are now. Raises `UserError` where the folder, the round, the config or the data are not the run's.
    """
    folder = RunDir.of_run(run)
    config = config_of(folder, overrides)
    records = {record["round"]: record for record in read_records(folder)}
    number = chosen_round(folder, which, records)
    path = folder.checkpoint_path(number)
    snapshot = checkpoint.load(path)
    if differences := config.diff(snapshot.config):
        raise RunDirError(str(run), f"was run with other settings ({'; '.join(differences)}); export it with its own")
    # On the CPU, and what a test needs is published after each round, tested or not.
    mpi = config.mpi.model_copy(update={"device": "cpu", "server_device": "cpu"})
    evaluation = config.evaluation.model_copy(update={"every": 1})
    here = config.model_copy(update={"mpi": mpi, "evaluation": evaluation})
    setup = start.prepare(here, SerialComm(), folder)
    resuming.check_data(setup, folder, snapshot)
    if problem := checkpoint.unfit(snapshot.server, setup.method.state_specs()):
        raise RunDirError(str(path), problem)
    state = resuming.initial_state(setup, snapshot)
    published = publish(setup, state, number + 1, 0)
    return SavedRound(folder.path, setup, snapshot, records.get(number, {}), state, published)


def chosen_round(folder: RunDir, which: str, records: Mapping[int, Mapping[str, Any]]) -> int:
    """Returns the number of the round, one of the run's own. Raises RunDirError with the saved ones."""
    saved = [number for number, _ in folder.checkpoints() if number > 0]
    if not saved:
        raise RunDirError(str(folder.path), f"no round is saved; `fedmpi show {folder.path}` says how far the run is")
    if which == "last":
        return saved[0]
    shown = f"saved: {', '.join(map(str, saved))}"
    if which == "best":
        best = Best.of(records.values()).best_of(saved)
        if best is None:
            raise RunDirError("--round", f"best, but none of the saved rounds was tested; {shown}")
        return best
    if not which.isdecimal() or int(which) not in saved:
        raise RunDirError("--round", f"expected best, last or the number of a saved round, got {which!r}; {shown}")
    return int(which)

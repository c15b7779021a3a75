"""Runs on all ranks of a job and on one process alone, compared bit for bit; for the tests under mpirun."""

import hashlib
import json
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_runs import Finished, finished, run_all, small_config

from fedmpi.check.bits import difference
from fedmpi.config.schema import Config
from fedmpi.mpi.communicator import Communicator, SerialComm


@dataclass(frozen=True)
class References:
    """What one process has computed, by config; jobs of several numbers of ranks may share the folder."""

    folder: Path

    def path(self, config: Config, options: Mapping[str, object]) -> Path:
        key = f"{json.dumps(config.to_dict())} {options}"
        return self.folder / hashlib.sha256(key.encode()).hexdigest()

    def make(self, runs: Path, config: Config, options: Mapping[str, object]) -> None:
        """Computes what is not there, in the folder `runs`."""
        path = self.path(config, options)
        if not path.exists():
            run_all(config, SerialComm(), runs / path.name, **options)
            path.write_bytes(pickle.dumps(finished(runs / path.name)))


@dataclass(frozen=True)
class Bits:
    """Runs of one test, on all ranks of this job and on rank 0 alone, and whether they have the same bits."""

    comm: Communicator
    folder: Path
    """Rank 0's, known to all."""
    references: References
    on_all_ranks: Callable[[bool, str], None]
    capfd: pytest.CaptureFixture[str]

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """A block in which an exception on one rank ends all: the others wait for it in a collective."""
        try:
            yield
        except BaseException:
            with self.capfd.disabled():
                traceback.print_exc()
            self.comm.abort(1)
            raise

    def by_rank_0(self, action: Callable[[], None]) -> None:
        """Does this on rank 0; the other ranks sleep meanwhile."""
        with self.all_or_none():
            if self.comm.rank == 0:
                action()
            self.comm.wait_for_all()

    def alone(self, config: Config, **options: object) -> Finished | None:
        """What rank 0 computes by itself, once for each config; the other ranks get None."""
        self.by_rank_0(lambda: self.references.make(self.folder, config, options))
        path = self.references.path(config, options)
        return pickle.loads(path.read_bytes()) if self.comm.rank == 0 else None

    def run(self, config: Config, **options: object) -> None:
        """On all ranks, in the folder `run`."""
        with self.all_or_none():
            run_all(config, self.comm, self.folder / "run", **options)

    def are_those_of_one_process(self, *words: str) -> None:
        """The small federation with these words, on all ranks and alone; alone without those of `mpi`."""
        self.run(small_config(*words))
        self.check(self.alone(small_config(*(word for word in words if not word.startswith("mpi.")))))

    def are_those_of_one_start(self, *words: str, rounds: tuple[int, int]) -> None:
        """Begun by gather for the first number of rounds and resumed by reduce up to the second; alone in one go."""
        begun, done = rounds
        self.run(small_config(*words, f"rounds={begun}", "mpi.exchange=gather"))
        self.run(small_config(*words, f"rounds={done}", "mpi.exchange=reduce"), resume=True)
        self.check(self.alone(small_config(*words, f"rounds={done}")))

    def check(self, expected: Finished | None) -> None:
        """The run in the folder `run` has the results that are expected."""
        found = "" if expected is None else difference(finished(self.folder / "run"), expected)
        self.on_all_ranks(found == "", found)

"""The ranks of one job that run the variants of combinations, one after the other; started by `random_runs.py`.

    mpirun -n 5 python -m tests.torture.combination_ranks FOLDER SEED NUMBER...

Each start has a communicator of its own, of as many ranks as `combinations.draw` says. What became of a start lies in
FOLDER/NUMBER/endings; FOLDER/NUMBER/done is there when all variants have ended, and holds the seconds that they took.
"""

from __future__ import annotations

import functools
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedmpi.config.load import load
from fedmpi.errors import RoundError, UserError
from fedmpi.experiment import run
from fedmpi.mpi.comm import MPI, Comm
from fedmpi.mpi.serial import SerialComm
from fedmpi.running.folder import Asked
from fedmpi.running.stopping import SIGNALLED, Stopping
from fedmpi.store.files import write_text

from .combinations import Combination, Fault, Leg, draw
from .moments import at_stages

_POLL_S = 2e-3


class InjectedFault(Exception):
    """What the rank raises that is to fail."""


class Abandoned(BaseException):
    """Another rank of the group has failed: under `python -m fedmpi.main`, this rank would be ended now."""


class Ranks:
    """This rank among all of the job."""

    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD
        self.rank: int = self._world.Get_rank()
        self._places = dict(self._world.allgather((self.rank, (MPI.Get_processor_name(), 0))))
        self._kept: list[Group] = []

    def meet(self) -> None:
        """A barrier in which a rank that waits sleeps."""
        request = self._world.Ibarrier()
        while not request.Test():
            time.sleep(_POLL_S)

    def from_first(self, find: Callable[[], Any]) -> Any:
        """What rank 0 finds, on all ranks."""
        found = find() if self.rank == 0 else None
        self.meet()
        return self._world.bcast(found)

    def group(self, leg: Leg, failed: Path) -> Group | SerialComm | None:
        """A communicator of the first ranks, as many as the start wants; None on the others."""
        mpi = self._world.Split(int(self.rank < leg.size), self.rank)
        if self.rank >= leg.size:
            return None
        if leg.is_alone:
            return SerialComm()
        # Requests of a group that has failed are never done, and their buffers belong to MPI.
        self._kept.append(Group(mpi, self._places, failed))
        return self._kept[-1]


class Group(Comm):
    """A communicator whose waits end where a rank has failed.

    Collectives are numbered; a rank that fails leaves in the folder `failed` an empty file, named by the last one that
    it took part in. That one and those before it will end on all ranks, so they must not be left: others may be in the
    blocking half of it. Those after it never end.
    """

    def __init__(self, mpi: Any, places: dict[int, tuple[str, int]], failed: Path) -> None:
        super().__init__(mpi, places, math.inf)
        self._failed = failed
        self.last = 0
        """Number of the collective that this rank began last."""
        self._waits_in = 0

    def wait_for_all(self) -> None:
        self.last += 1
        self._waits_in = self.last
        super().wait_for_all()

    def start_gather(self, *arguments: Any) -> Any:
        return self._numbered(super().start_gather(*arguments))

    def start_barrier(self) -> Any:
        return self._numbered(super().start_barrier())

    def _numbered(self, request: Any) -> Any:
        self.last += 1
        number = self.last

        def wait() -> None:
            self._waits_in = number
            request.wait()

        return SimpleNamespace(wait=wait)

    def _sleep_until(self, request: Any) -> None:
        number = self._waits_in

        def test() -> bool:
            if request.Test():
                return True
            if number > min((int(path.name) for path in self._failed.glob("*")), default=number):
                raise Abandoned
            return False

        super()._sleep_until(SimpleNamespace(Test=test))


def fail_at(fault: Fault | None, rank: int) -> AbstractContextManager[object]:
    """Within it, this rank of the group raises where the fault says."""
    left = [fault.skip if fault else 0]

    def act(stage: str, number: int | None) -> None:
        if fault is not None and (rank, number, stage) == (fault.rank, fault.round, fault.stage):
            left[0] -= 1
            if left[0] < 0:
                raise InjectedFault

    return at_stages(act)


class StoppingAfter(Stopping):
    """Stops as the signal does, after so many rounds of this start."""

    def __init__(self, rounds: int | None) -> None:
        super().__init__()
        self._left = rounds or math.inf

    def wish(self, round_s: float, share: float = 1.0) -> int:
        self._left -= 1
        wish = super().wish(round_s, share)
        return SIGNALLED if self._left == 0 else wish


def start(comm: Any, combination: Combination, leg: Leg, folder: Path, *, resume: bool) -> dict[str, Any]:
    """One start of a run, on all ranks of the group; how it ended on this one."""
    try:
        config = load(None, [*combination.overrides, *leg.settings])
        asked = Asked(str(folder), resume, command=("combination",))
        with fail_at(leg.fault, comm.rank):
            finished = run(config, comm, asked, stopping=StoppingAfter(leg.stop_after))
        return {"ending": "finished" if finished else "stopped"}
    except Abandoned:
        return {"ending": "abandoned"}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared with that of the other variants
        cause = error.__cause__ if isinstance(error, RoundError) and error.__cause__ else error
        if isinstance(cause, InjectedFault):
            return {"ending": "fault"}
        ending = "refused" if isinstance(error, UserError) and not isinstance(error, RoundError) else "failed"
        return {"ending": ending, "text": f"{type(cause).__name__}: {cause}"}


def run_combination(ranks: Ranks, combination: Combination, folder: Path) -> None:
    """All starts of all variants."""
    (folder / "endings").mkdir(parents=True, exist_ok=True)
    for variant, legs in enumerate(combination.variants):
        for nth, leg in enumerate(legs):
            ranks.meet()
            label = f"{variant}-{nth}"
            failed = folder / f"failed-{label}"
            if (comm := ranks.group(leg, failed)) is None:
                continue
            ended = start(comm, combination, leg, folder / f"run-{variant}", resume=nth > 0)
            if ended["ending"] in ("fault", "failed", "refused"):
                failed.mkdir(exist_ok=True)
                (failed / str(getattr(comm, "last", 0))).touch()
            (folder / "endings" / f"{label}-{comm.rank}.json").write_text(json.dumps(ended))
    ranks.meet()


def main(words: Sequence[str]) -> int:
    folder, seed = Path(words[0]), int(words[1])
    ranks = Ranks()
    for number in map(int, words[2:]):
        begun = time.monotonic()
        combination = ranks.from_first(functools.partial(draw, seed, number, folder / "data"))
        run_combination(ranks, combination, folder / str(number))
        if ranks.rank == 0:
            write_text(folder / str(number) / "done", str(time.monotonic() - begun))
    ranks.meet()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

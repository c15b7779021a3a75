"""The ranks of one job that run the variants of combinations, several at a time; started by `random_runs.py`.

    mpirun -n 6 python -m tests.torture.combination_ranks FOLDER SEED NUMBER...

The job's ranks are divided into groups, each with a communicator of its own, as `combinations.draw` says. Each rank
has another PYTHONHASHSEED. What became of a start lies in FOLDER/NUMBER/endings; FOLDER/NUMBER/done is there when all
variants have ended, and holds the seconds that they took. No combination is begun once there is a file FOLDER/stop.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from fedmpi.mpi.launch import claimed

if TYPE_CHECKING:
    from fedmpi.run.stopping import Stopping

    from .combinations import Combination, Leg

_POLL_S = 2e-3


class InjectedFault(Exception):
    """What the rank raises that is to fail."""


class Abandoned(BaseException):
    """Another rank of the group has failed: under `python -m fedmpi.main`, this rank would be ended now."""


def with_own_hash_seed(rank: int) -> None:
    """Starts this program again under a PYTHONHASHSEED of the rank's own, unless it has been."""
    if os.environ.get("PYTHONHASHSEED") != str(rank + 1):
        os.environ["PYTHONHASHSEED"] = str(rank + 1)
        os.execv(sys.executable, sys.orig_argv)


class Ranks:
    """This rank among all of the job."""

    def __init__(self) -> None:
        from fedmpi.mpi.comm import MPI

        self._world = MPI.COMM_WORLD
        self.rank: int = self._world.Get_rank()
        self._places = dict(self._world.allgather((self.rank, (MPI.Get_processor_name(), 0))))
        self._kept: list[Any] = []

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

    def group(self, number: int, failed: Path, *, is_alone: bool) -> Any:
        """A communicator of all ranks that give this number; see `_group`."""
        from fedmpi.mpi.serial import SerialComm

        mpi = self._world.Split(number, self.rank)
        if is_alone:
            return SerialComm()
        # Requests of a group that has failed are never done, and their buffers belong to MPI.
        self._kept.append(_group(mpi, self._places, failed))
        return self._kept[-1]


def _group(mpi: Any, places: dict[int, tuple[str, int]], failed: Path) -> Any:
    """A communicator whose waits end where a rank has failed.

    Collectives are numbered; a rank that fails leaves in the folder `failed` an empty file, named by the last one that
    it took part in. That one and those before it will end on all ranks, so they must not be left: others may be in the
    blocking half of it. Those after it never end.
    """
    from fedmpi.mpi.comm import Comm

    class Group(Comm):
        last = 0
        """Number of the collective that this rank began last."""
        _number = 0
        """Of the one that it waits in."""

        def wait_for_all(self) -> None:
            self.last += 1
            self._number = self.last
            super().wait_for_all()

        def start_gather(self, *arguments: Any) -> Any:
            return self._numbered(super().start_gather(*arguments))

        def start_barrier(self) -> Any:
            return self._numbered(super().start_barrier())

        def _numbered(self, request: Any) -> Any:
            self.last += 1
            return _Numbered(self, request, self.last)

        def _sleep_until(self, request: Any) -> None:
            number = self._number

            def test() -> bool:
                if request.Test():
                    return True
                if failed.exists() and number > min((int(path.name) for path in failed.iterdir()), default=number):
                    raise Abandoned
                return False

            super()._sleep_until(SimpleNamespace(Test=test))

    return Group(mpi, places, math.inf)


@dataclass
class _Numbered:
    """A collective under way, as `fedmpi.mpi.comm` gives it, with its number."""

    _group: Any
    _request: Any
    _waits_in: int

    def wait(self) -> None:
        self._group._number = self._waits_in
        self._request.wait()


def fail_at(leg: Leg, rank: int) -> AbstractContextManager[object]:
    """Within it, this rank of the group raises where the leg's fault says."""
    from fedmpi.clock import Clock

    enter, fault = Clock.stage, leg.fault
    skips = [0 if fault is None else fault.skip]

    def stage(self: Clock, name: Any, round_number: int | None = None, client: int | None = None) -> Any:
        context = enter(self, name, round_number, client)
        if fault is None or (rank, round_number, name) != (fault.rank, fault.round, fault.stage):
            return context
        skips[0] -= 1
        return _failing(context) if skips[0] < 0 else context

    return mock.patch.object(Clock, "stage", stage)


@contextmanager
def _failing(stage: AbstractContextManager[Any]) -> Any:
    with stage:
        raise InjectedFault
    yield


def stopping_after(rounds: int | None) -> Stopping:
    """As the signal does after that many rounds of this start."""
    from fedmpi.run.stopping import SIGNALLED, Stopping

    class After(Stopping):
        num_rounds = 0

        def wish(self, round_s: float, share: float = 1.0) -> int:
            self.num_rounds += 1
            wish = super().wish(round_s, share)
            return SIGNALLED if self.num_rounds == rounds else wish

    return After()


def start(comm: Any, combination: Combination, leg: Leg, folder: Path, *, resume: bool) -> dict[str, Any]:
    """One start of a run, on all ranks of the group; how it ended on this one."""
    from fedmpi.config.load import load
    from fedmpi.errors import RoundError, UserError
    from fedmpi.experiment import run
    from fedmpi.run.folder import Asked

    try:
        config = load(None, [*combination.overrides, *leg.settings])
        asked = Asked(str(folder), resume, command=("combination",))
        with fail_at(leg, comm.rank):
            finished = run(config, comm, asked, stopping=stopping_after(leg.stop_after))
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
    """All variants, wave by wave."""
    (folder / "endings").mkdir(parents=True, exist_ok=True)
    ranks.meet()
    for wave in combination.waves:
        groups = [place for place in wave for _ in range(combination.variants[place[0]][place[1]].size)]
        mine = groups[ranks.rank] if ranks.rank < len(groups) else None
        number = len(wave) if mine is None else wave.index(mine)
        if mine is None:
            ranks.group(number, folder, is_alone=True)
        else:
            variant, nth = mine
            leg, label = combination.variants[variant][nth], f"{variant}-{nth}"
            failed = folder / f"failed-{label}"
            comm = ranks.group(number, failed, is_alone=leg.is_alone)
            ended = start(comm, combination, leg, folder / f"run-{variant}", resume=nth > 0)
            if ended["ending"] in ("fault", "failed", "refused"):
                failed.mkdir(exist_ok=True)
                (failed / str(getattr(comm, "last", 0))).touch()
            (folder / "endings" / f"{label}-{comm.rank}.json").write_text(json.dumps(ended))
        ranks.meet()


def main(words: Sequence[str]) -> int:
    with_own_hash_seed(claimed()[0])
    from fedmpi.store.files import write_text

    from .combinations import draw

    folder, seed = Path(words[0]), int(words[1])
    ranks = Ranks()
    for number in map(int, words[2:]):
        begun = time.monotonic()
        if ranks.from_first((folder / "stop").exists):
            break
        combination = ranks.from_first(functools.partial(draw, seed, number, folder / "data"))
        run_combination(ranks, combination, folder / str(number))
        if ranks.rank == 0:
            write_text(folder / str(number) / "done", str(time.monotonic() - begun))
    ranks.meet()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Contract 10: a waiting rank sleeps, so that on a laptop it does not take a core from those that train."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from fast import fast
from launched import LIMIT_S

from fedmpi.mpi.communicator import Communicator

pytestmark = pytest.mark.mpi(min_size=2)

# So long do all others wait for the late rank, by their own clocks.
LATE_S = 0.8
# Measured on 2 cores with 5 ranks: 2-6 %. A rank that polls without sleeping has 100 %, or half on a shared core.
LARGEST_SHARE = 0.3
BLOCK = 64


def late_send(comm: Communicator) -> None:
    """The root waits for what the last rank sends."""
    received = torch.zeros(BLOCK, dtype=torch.uint8)
    comm.start_send(comm.size - 1, BLOCK, received.clone(), received)()


WAITS: dict[str, Callable[[Communicator], object]] = {
    "wait_for_all": lambda comm: comm.wait_for_all(),
    "bcast": lambda comm: comm.bcast(torch.zeros(1000)),
    "reduce_sum": lambda comm: comm.reduce_sum(torch.zeros(1000, dtype=torch.int64)),
    "allreduce_sum": lambda comm: comm.allreduce_sum(torch.zeros(1000, dtype=torch.int64)),
    "allgather_object": lambda comm: comm.allgather_object(1),
    "bcast_object": lambda comm: comm.bcast_object(1),
    "start_send": late_send,
}


def measured(comm: Communicator, collective: str, folder: Path) -> tuple[float, float, float]:
    """CPU time, time and idle time of a collective. The last rank comes late: each rank that waits writes a file,
    and it comes when all files are there.
    """
    comm.wait_for_all()
    if comm.rank == comm.size - 1:
        await_files([folder / str(rank) for rank in who_waits(comm, collective)])

    looked: list[float] = []

    def look() -> None:
        looked.append(time.perf_counter())
        if looked[-1] - looked[0] > LATE_S:
            (folder / str(comm.rank)).touch()

    comm.while_waiting = look
    cpu, wall, idle = time.process_time(), time.perf_counter(), comm.traffic.seconds["idle"]
    WAITS[collective](comm)
    cpu, wall, idle = time.process_time() - cpu, time.perf_counter() - wall, comm.traffic.seconds["idle"] - idle
    comm.while_waiting = None
    comm.wait_for_all()
    return cpu, wall, idle


def who_waits(comm: Communicator, collective: str) -> range:
    """A rank that sends need not wait."""
    return range(1 if collective == "start_send" else comm.size - 1)


def await_files(paths: Sequence[Path]) -> None:
    until = time.monotonic() + LIMIT_S
    while not all(path.exists() for path in paths) and time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.slow(but_on=3)
@pytest.mark.parametrize("collective", fast("wait_for_all", "start_send", of=WAITS))
def test_who_waits_for_a_late_rank_sleeps(
    comm: Communicator, on_all_ranks: Callable[[bool, str], None], collective: str, tmp_path: Path
) -> None:
    """CPU time of a rank that waits for the last one, all threads, over the time it waited."""
    folder = Path(comm.bcast_object(str(tmp_path)))
    cpu, wall, idle = measured(comm, collective, folder)
    waits = comm.rank in who_waits(comm, collective)
    on_all_ranks(not waits or (folder / str(comm.rank)).exists(), "it did not wait: this test shows nothing")
    on_all_ranks(not waits or cpu < LARGEST_SHARE * wall, f"{cpu:.2f} s of CPU in {wall:.2f} s")
    on_all_ranks(not waits or idle > LATE_S / 2, f"of {wall:.2f} s only {idle:.2f} s are counted as idle")

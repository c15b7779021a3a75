"""The collectives: what every rank's buffer holds afterwards, as formulas in rank and size; inputs do not change."""

import contextlib
import copy
import itertools
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from fedmpi.errors import ConfigError, RankLossError, StartupError
from fedmpi.mpi.communicator import Communicator, together

OnAllRanks = Callable[[bool, str], None]

pytestmark = pytest.mark.mpi(min_size=2)

BLOCK = 64
GIB = 2**30


def pattern(rank: int, num_bytes: int) -> torch.Tensor:
    """Bytes that differ from rank to rank and along the buffer: (31 rank + 7 i) mod 251."""
    return ((31 * rank + 7 * torch.arange(num_bytes)) % 251).to(torch.uint8)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5, 2), (1000,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_bcast_gives_everybody_the_roots(
    comm: Communicator, on_all_ranks: OnAllRanks, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    def of_rank(rank: int) -> torch.Tensor:
        return (torch.arange(int(np.prod(shape))) % 50 + rank).to(dtype).view(shape)

    buffer = of_rank(comm.rank)
    comm.bcast(buffer)
    on_all_ranks(torch.equal(buffer, of_rank(0)), f"has {buffer.flatten()[:5]}")


@pytest.mark.parametrize("piece_bytes", [8, 24, 4096, None])
def test_pieces_change_nothing(
    comm: Communicator, on_all_ranks: OnAllRanks, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """Broadcast and sums go out in pieces; 101 numbers do not divide into any of these."""
    if piece_bytes is not None:
        monkeypatch.setattr("fedmpi.mpi.comm._PIECE_BYTES", piece_bytes)
    whole = torch.arange(101) * (comm.rank + 1)
    comm.allreduce_sum(whole)
    on_all_ranks(torch.equal(whole, torch.arange(101) * triangle(comm.size)), "sum in pieces")
    sent = torch.arange(101) + comm.rank
    comm.bcast(sent)
    on_all_ranks(torch.equal(sent, torch.arange(101)), "broadcast in pieces")


def triangle(size: int) -> int:
    """1 + 2 + ... + size."""
    return size * (size + 1) // 2


@pytest.mark.parametrize("length", [0, 1, 1000])
@pytest.mark.parametrize(("collective", "largest"), [("reduce_sum", 2**55), ("allreduce_sum", -(2**54) - 1)])
def test_sums_are_exact(
    comm: Communicator, on_all_ranks: OnAllRanks, collective: str, largest: int, length: int
) -> None:
    """Rank r has (r + 1) (i + 2^55), which no float64 holds; `reduce_sum` adds at the root only."""
    terms = torch.arange(length) + largest
    buffer = terms * (comm.rank + 1)
    getattr(comm, collective)(buffer)
    has_sum = comm.rank == 0 or collective == "allreduce_sum"
    on_all_ranks(not has_sum or torch.equal(buffer, terms * triangle(comm.size)), "wrong sum")


def test_what_one_rank_finds_ends_all_ranks(comm: Communicator, on_all_ranks: OnAllRanks) -> None:
    def action() -> None:
        if comm.rank == comm.size - 1:
            raise ConfigError("data.name", "is not here")

    text = ""
    try:
        together(comm, action)
    except StartupError as error:
        text = error.text()
    on_all_ranks("data.name: is not here" in text, f"says {text!r}")


def test_objects(comm: Communicator, on_all_ranks: OnAllRanks) -> None:
    of_ranks = [{"rank": rank, "text": "Größe\n", "values": (0.5, [])} for rank in range(comm.size)]
    on_all_ranks(comm.allgather_object(of_ranks[comm.rank]) == of_ranks, "allgather")
    on_all_ranks(comm.bcast_object(of_ranks[comm.rank]) == of_ranks[0], "broadcast")


SIZES: dict[str, Callable[[int, int], int]] = {
    "growing": lambda rank, size: BLOCK * (rank + 1),
    "only the root": lambda rank, size: 5 * BLOCK * (rank == 0),
    "beyond eager": lambda rank, size: BLOCK * 20_000 * (rank + 1),
}


@pytest.mark.parametrize("sizes", SIZES)
def test_several_sends_under_way(comm: Communicator, on_all_ranks: OnAllRanks, sizes: str) -> None:
    """Each rank sends two messages, the second of other bytes, out of buffers that are longer than needed. They are
    waited for in reverse, after a broadcast that passes them, as one does when a phase ends.
    """
    waits, boxes = [], []
    for number, sender in itertools.product(range(2), range(comm.size)):
        num_bytes = SIZES[sizes](sender, comm.size)
        sent = pattern(sender + 10 * number, num_bytes + BLOCK)
        received = torch.full((num_bytes if comm.rank == 0 else 0,), 255, dtype=torch.uint8)
        waits.append(comm.start_send(sender, num_bytes, sent, received))
        boxes.append((sent, sent.clone(), received))
    word = torch.tensor([comm.rank + 5])
    comm.bcast(word)
    on_all_ranks(int(word) == 5, "wrong broadcast")
    for wait in reversed(waits):
        wait()
    arrived = all(torch.equal(received, before[: len(received)]) for _, before, received in boxes)
    on_all_ranks(comm.rank > 0 or arrived, f"{sizes}: wrong bytes at the root")
    on_all_ranks(all(torch.equal(sent, before) for sent, before, _ in boxes), f"{sizes}: input changed")


def test_traffic_counts_what_ranks_received(comm: Communicator, on_all_ranks: OnAllRanks) -> None:
    """Everybody but the root receives a broadcast; the root receives what the others send."""
    comm.traffic.take_moved()
    block = torch.zeros(BLOCK, dtype=torch.uint8)
    counts = []
    for action in (
        lambda: comm.bcast(torch.zeros(10, dtype=torch.float32)),
        lambda: comm.reduce_sum(torch.zeros(10, dtype=torch.int64)),
        lambda: comm.allreduce_sum(torch.zeros(10, dtype=torch.int64)),
        lambda: comm.start_send(0, BLOCK, block, block.clone())(),
        lambda: comm.start_send(1, BLOCK, block, block)(),
        comm.wait_for_all,
    ):
        action()
        counts.append((*comm.traffic.take_moved().values(),))
    others = comm.size - 1
    expected = [(others, 40 * others), (others, 80 * others), (others, 80 * others), (0, 0), (1, BLOCK), (0, 0)]
    on_all_ranks(counts == expected, f"{counts}, expected {expected}")


def enough_memory(comm: Communicator) -> bool:
    is_enough = psutil.virtual_memory().available > 12 * GIB
    return comm.size == 2 and comm.allgather_object(str(is_enough))[0] == "True"


def test_an_error_is_told_to_all_ranks_once(comm: Communicator, on_all_ranks: OnAllRanks) -> None:
    """Where a job outlives its ranks; MPI may report a death to one rank alone, and the others would wait for ever."""
    from fedmpi.mpi.library import MPI

    told = []

    def fails() -> None:
        raise MPI.Exception(MPI.ERR_OTHER)

    broken = copy.copy(comm)
    broken.recovers = True
    broken._mpi = SimpleNamespace(Ibarrier=fails, Revoke=lambda: told.append("revoked"))
    for _ in range(2):
        with contextlib.suppress(RankLossError):
            broken.wait_for_all()
            told.append("went on")
    on_all_ranks(told == ["revoked"], str(told))


def test_messages_over_2_gib(comm: Communicator, on_all_ranks: OnAllRanks) -> None:
    """2 GiB and one block of numbers that say where they are, down by broadcast, then up.

    A 32-bit count of bytes would wrap at 2 GiB. Rank 0's buffer is cleared in between.
    """
    if not enough_memory(comm):
        pytest.skip("wants 2 ranks and 12 GiB of free memory")
    num_bytes = 2 * GIB + BLOCK
    length = num_bytes // 8
    numbers = torch.arange(length)
    buffer = numbers.clone() if comm.rank == 0 else torch.zeros_like(numbers)
    comm.bcast(buffer)
    on_all_ranks(torch.equal(buffer, numbers), "broadcast")
    octets = buffer.view(torch.uint8)
    buffer.zero_() if comm.rank == 0 else None
    comm.start_send(1, num_bytes, octets, octets)()
    on_all_ranks(torch.equal(buffer, numbers), "upload")

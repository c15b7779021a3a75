"""What is left to each rank when others are lost, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedmpi.experiment import _share
from fedmpi.federation.plan import worker_ranks


@pytest.mark.parametrize(
    ("started", "left", "trains", "per_round", "share"),
    [
        (5, 5, False, 8, 1.0),
        (5, 3, False, 8, 2.0),  # four workers with 2 clients each, then two with 4
        (6, 5, False, 5, 2.0),  # one client each, then somebody has two
        (5, 2, False, 8, 4.0),
        (2, 1, False, 4, 2.0),  # the worker's part and the server's
        (4, 1, False, 6, 4.0),
        (2, 1, True, 4, 2.0),  # rank 0 did both before
        (1, 1, False, 4, 1.0),
        (9, 5, False, 4, 2.0),  # half of them had nothing to do
    ],
)
def test_share(started: int, left: int, trains: bool, per_round: int, share: float) -> None:
    mpi, clients = SimpleNamespace(server_trains=trains), SimpleNamespace(per_round=per_round)
    setup = SimpleNamespace(
        comm=SimpleNamespace(size=left, started_size=started), config=SimpleNamespace(mpi=mpi, clients=clients),
        workers=worker_ranks(left, server_trains=trains),
    )  # fmt: skip
    assert _share(setup) == share

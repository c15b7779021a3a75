"""What is left to each rank when others are lost, by hand."""

from types import SimpleNamespace

import pytest

from fedmpi.running.limits import Limits


@pytest.mark.parametrize(
    ("started", "left", "trains", "share"),
    [
        (5, 5, False, 1),
        (5, 4, False, 2),  # one of the three workers has the fourth's clients, too
        (5, 3, False, 2),
        (5, 2, False, 4),
        (6, 4, False, 2),  # five workers, then three
        (2, 1, False, 2),  # the worker's part and the server's
        (4, 1, False, 4),
        (2, 1, True, 2),  # rank 0 did both before
        (5, 3, True, 2),
        (1, 1, False, 1),
        (9, 5, False, 2),
    ],
)
def test_share(started: int, left: int, trains: bool, share: int) -> None:
    comm = SimpleNamespace(size=left, started_size=started, traffic=None)
    assert Limits(SimpleNamespace(server_trains=trains), comm, None).share() == share

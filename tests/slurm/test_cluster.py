"""What the test cluster is started with."""

from __future__ import annotations

import socket

import pytest
import slurm_cluster


def test_ports_are_different_and_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is taken, or drawn for the second time, is left out."""
    with socket.socket() as listening:
        (first, second) = slurm_cluster.free_ports(2)
        listening.bind(("127.0.0.1", first))
        listening.listen()
        draws = iter([first, second, second, *range(20_000, 32_768)])
        monkeypatch.setattr(slurm_cluster.random, "randrange", lambda *bounds: next(draws))
        found = slurm_cluster.free_ports(3)
    assert found[0] == second and len({first, *found}) == 4

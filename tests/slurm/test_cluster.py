"""What the test cluster is started with."""

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


@pytest.mark.slow
def test_an_mpirun_that_was_killed_before_is_in_nobody_s_way(cluster: slurm_cluster.Cluster) -> None:
    """What it left in /tmp would end a new one that happens to have the same process number."""
    session = cluster.control("srun", "mpirun", "-n", "1", "printenv", "PMIX_SERVER_TMPDIR")
    assert session.startswith(f"{cluster.folder}/tmp/ompi."), session

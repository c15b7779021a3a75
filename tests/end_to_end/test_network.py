"""What the ranks of a job on one host listen on: nothing."""

import ipaddress
from pathlib import Path

import psutil
import pytest
from fast import fast
from launched import ENDLESS, ULFM, Start, has_rounds, ranks_of

from fedmpi.mpi.launch import keep_to_this_host

HERE = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}


def listens(pid: int) -> list[str]:
    """The addresses beyond loopback on which a process listens for TCP."""
    found = psutil.Process(pid).net_connections("tcp")
    addresses = [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]
    return [address for address in addresses if not ipaddress.ip_address(address).is_loopback]


@pytest.mark.slow
@pytest.mark.parametrize("has_ulfm", fast(True, of=(False, True), slow=()))
def test_ranks_on_one_host_listen_on_nothing(start: Start, run_dir: Path, has_ulfm: bool) -> None:
    launched = start(2, *ENDLESS, run_dir=run_dir, options=ULFM if has_ulfm else ())
    assert launched.wait_until(has_rounds(run_dir, 1)), launched.err
    assert [listens(pid) for pid in ranks_of(launched)] == [[], []]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {**HERE, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        {**HERE, "OMPI_MCA_btl": "self,tcp"},
        {**HERE, "OMPI_MCA_btl_sm_backing_directory": "/nowhere"},
        {"OMPI_COMM_WORLD_SIZE": str(10**8), "OMPI_COMM_WORLD_LOCAL_SIZE": str(10**8)},
    ],
    ids=["no launcher", "two hosts", "chosen", "no shared memory", "too little shared memory"],
)
def test_tcp_stays_where_it_is_needed_or_chosen(environment: dict[str, str]) -> None:
    before = dict(environment)
    keep_to_this_host(environment)
    assert environment == before


def test_tcp_is_left_out(tmp_path: Path) -> None:
    environment = {
        "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "OMPI_MCA_btl_sm_backing_directory": str(tmp_path),
    }
    keep_to_this_host(environment)
    assert environment["OMPI_MCA_btl"] == "^tcp,ofi"

"""What the ranks of a job on one host listen on: nothing."""

import contextlib
import os
from pathlib import Path

import pytest
from fast import fast
from launched import ENDLESS, ULFM, Start, has_rounds, ranks_of

from fedmpi.mpi.launch import keep_to_this_host

HERE = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}


def listens(pid: int) -> set[str]:
    """The addresses beyond loopback, as /proc writes them, on which a process listens for TCP."""
    own = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(os.readlink(handle))
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                found.add(words[1].partition(":")[0])
    return {address for address in found if not address.endswith("7F") and address != "0" * 24 + "01000000"}


@pytest.mark.slow
@pytest.mark.parametrize("has_ulfm", fast(True, of=(False, True), slow=()))
def test_ranks_on_one_host_listen_on_nothing(start: Start, run_dir: Path, has_ulfm: bool) -> None:
    launched = start(2, *ENDLESS, run_dir=run_dir, options=ULFM if has_ulfm else ())
    assert launched.wait_until(has_rounds(run_dir, 1)), launched.err
    assert [listens(pid) for pid in ranks_of(launched)] == [set()] * 2


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

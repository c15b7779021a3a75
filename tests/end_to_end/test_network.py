"""What a job on one host listens on: its ranks on nothing, and in a network of its own all of it is out of reach."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest
from fast import fast
from launched import ENDLESS, ULFM, Start, command, descendants, has_rounds, launch, ranks_of
from small_runs import SMALL

from fedmpi.mpi.launch import keep_to_this_host

ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""As `jobs/quickstart.sh` starts mpirun for root."""
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
@pytest.mark.parametrize("has_ulfm", fast(True, of=(False, True)))
def test_ranks_on_one_host_listen_on_nothing(start: Start, run_dir: Path, has_ulfm: bool) -> None:
    launched = start(2, *ENDLESS, run_dir=run_dir, options=ULFM if has_ulfm else ())
    assert launched.wait_until(has_rounds(run_dir, 1)), launched.err
    assert [listens(pid) for pid in ranks_of(launched)] == [set()] * 2


@pytest.mark.slow
def test_transports_that_the_user_chose_stay(start: Start, run_dir: Path) -> None:
    launched = start(2, *ENDLESS, run_dir=run_dir, options=("--mca", "btl", "self,sm,tcp"))
    assert launched.wait_until(has_rounds(run_dir, 1)), launched.err
    assert all(listens(pid) for pid in ranks_of(launched))


@pytest.mark.slow
def test_in_a_network_of_its_own_nothing_is_to_be_reached(run_dir: Path, tmp_path: Path) -> None:
    """mpirun, too, has no interface but loopback."""
    tried = subprocess.run([*ALONE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(tried.stderr.strip())
    words = command(3, *SMALL, *ENDLESS, "--run-dir", str(run_dir))
    launched = launch(tmp_path, [*ALONE, *words])
    try:
        assert launched.wait_until(has_rounds(run_dir, 1)), launched.err
        family = descendants(launched.process.pid)
        devices = {line.split(":")[0].strip() for pid in family for line in _devices(pid)}
        assert len(family) >= 4 and devices == {"lo"}
    finally:
        launched.kill()


def _devices(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "3"},
        {**HERE, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        {**HERE, "OMPI_COMM_WORLD_LOCAL_SIZE": "x"},
        {**HERE, "OMPI_MCA_btl": "self,tcp"},
        {**HERE, "OMPI_MCA_btl_sm_backing_directory": "/nowhere"},
        {"OMPI_COMM_WORLD_SIZE": str(10**8), "OMPI_COMM_WORLD_LOCAL_SIZE": str(10**8)},
    ],
    ids=["no launcher", "unknown", "two hosts", "garbage", "chosen", "no shared memory", "too little shared memory"],
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

"""A test that hangs ends its job, and says where: pytest-timeout, as setup.cfg sets it."""

import subprocess
from pathlib import Path

import pytest
from launched import LIMIT_S, command

ROOT = Path(__file__).resolve().parents[2]
TEST = """
import pytest
from fedmpi.mpi import starting

@pytest.mark.mpi
def test_one_rank_is_missing():
    comm = starting.world()
    if comm.rank > 0:
        comm.wait_for_all()
"""


@pytest.mark.slow
def test_a_hung_rank_ends_the_job_with_its_stack(tmp_path: Path) -> None:
    """Rank 0 has passed, and waits for rank 1 where MPI ends."""
    (tmp_path / "test_it.py").write_text(TEST)
    limits = ("-o", "faulthandler_timeout=2", "-o", "timeout=5", "-p", "no:cacheprovider")
    options = ("-c", str(ROOT / "setup.cfg"), "--rootdir", str(ROOT), *limits, "--with-mpi")
    words = command(2, *options, str(tmp_path / "test_it.py"), program=("-m", "pytest"))
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT)
    assert done.returncode != 0 and "in test_one_rank_is_missing" in done.stderr, done

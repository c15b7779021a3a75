"""Contract 1 across processes: no byte of a run follows PYTHONHASHSEED, which differs from process to process."""

import os
import subprocess
import sys
from pathlib import Path

import method_cases
import pytest
from fast import fast
from launched import environment
from small_runs import finished, run_all, small_config

from fedmpi.mpi.communicator import SerialComm

CASES = ("topk", "lgfedavg", "hermes-all", "splitmix")
"""Three methods with memory, and one whose clients train some of the nets."""
ELSEWHERE = """
import sys
from pathlib import Path
from fedmpi.check.small import run_all, small_config
from fedmpi.mpi.communicator import SerialComm
run_all(small_config(*sys.argv[2:]), SerialComm(), Path(sys.argv[1]))
"""


@pytest.mark.parametrize("case", fast("topk", of=CASES, slow=()))
def test_runs_under_two_hash_seeds_have_the_same_bytes(case: str, tmp_path: Path) -> None:
    """This process has one, or none and so a random one."""
    words = method_cases.CASES[case]
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path / "other"), *words],
        env=environment() | {"PYTHONHASHSEED": other},
        timeout=600,
        check=True,
    )
    run_all(small_config(*words), SerialComm(), tmp_path / "run")
    assert finished(tmp_path / "run") == finished(tmp_path / "other")
    memories = [path.relative_to(tmp_path / "run") for path in (tmp_path / "run" / "memory").rglob("*.h5")]
    assert bool(memories) == (case != "splitmix")
    for path in [*memories, "partition.h5"]:
        assert (tmp_path / "other" / path).read_bytes() == (tmp_path / "run" / path).read_bytes()

"""Contract 1 across processes: no byte of a run follows PYTHONHASHSEED, which differs from process to process."""

import os
import subprocess
from pathlib import Path

import method_cases
import pytest
from fast import fast
from launched import LIMIT_S, command, environment
from small_runs import SMALL, finished, run_alone

CASES = ("topk", "lgfedavg", "hermes-all", "splitmix")
"""Three methods with memory, and one whose clients train some of the nets."""


@pytest.mark.parametrize("case", fast("topk", of=CASES, slow=()))
def test_runs_under_two_hash_seeds_have_the_same_bytes(case: str, tmp_path: Path) -> None:
    """This process has one, or none and so a random one."""
    words = method_cases.CASES[case]
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    elsewhere = command(1, *SMALL, *words, "--run-dir", str(tmp_path / "other"))
    subprocess.run(elsewhere, env=environment() | {"PYTHONHASHSEED": other}, timeout=LIMIT_S, check=True)
    assert run_alone(tmp_path / "run", *words) == finished(tmp_path / "other")
    memories = [path.relative_to(tmp_path / "run") for path in (tmp_path / "run" / "memory").rglob("*.h5")]
    assert bool(memories) == (case != "splitmix")
    for path in [*memories, "partition.h5"]:
        assert (tmp_path / "other" / path).read_bytes() == (tmp_path / "run" / path).read_bytes()

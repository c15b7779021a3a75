"""A branch without a changed config computes the bits of a resumed run, on any number of ranks, memories included."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import method_cases
import pytest
from fast import fast
from small_runs import finished, run_all, small_config

from fedmpi.mpi.serial import SerialComm
from fedmpi.run.origin import Origin

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.mark.parametrize("case", fast("topk", of=("topk", "hermes", "scaffold", "fedhm-dynamic")))
def test_a_branch_equals_a_resume(
    comm: Comm, tmp_path: Path, capfd: pytest.CaptureFixture[str], on_all_ranks: Callable[[bool, str], None], case: str
) -> None:
    """Rank 0 alone makes two rounds, and two more; all ranks make two more in a branch of a copy of the first two."""
    folder = Path(comm.allgather_text(str(tmp_path))[0])
    words = (*method_cases.CASES[case], "output.keep_checkpoints=1")
    try:
        if comm.rank == 0:
            run_all(small_config(*words, "rounds=2"), SerialComm(), folder / "resumed")
            shutil.copytree(folder / "resumed", folder / "parent")
            run_all(small_config(*words, "rounds=4"), SerialComm(), folder / "resumed", resume=True)
        comm.wait_for_all()
        origin = Origin.named(str(folder / "parent"))
        run_all(small_config(*words, "rounds=4"), comm, folder / "branch", origin=origin)
    except BaseException:  # the others wait for this rank in a collective
        with capfd.disabled():
            traceback.print_exc()
        comm.abort(1)
    is_same = comm.rank > 0 or finished(folder / "branch") == finished(folder / "resumed")
    on_all_ranks(is_same, "the branch has other bits than the resumed run")

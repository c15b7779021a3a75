"""A branch without a changed config computes the bits of a resumed run, on any number of ranks, memories included."""

import method_cases
import pytest
from fast import fast
from same_bits import Bits
from small_runs import run_all, small_config

from fedmpi.mpi.serial import SerialComm
from fedmpi.run.origin import Origin

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.mark.parametrize("case", fast("topk", of=("topk", "hermes", "scaffold", "fedhm-dynamic")))
def test_a_branch_equals_an_undisturbed_run(bits: Bits, case: str) -> None:
    """Rank 0 alone makes two rounds; all ranks make two more in a branch of them."""
    words = (*method_cases.CASES[case], "output.keep_checkpoints=1")
    with bits.all_or_none():
        if bits.comm.rank == 0:
            run_all(small_config(*words, "rounds=2"), SerialComm(), bits.folder / "parent")
        bits.comm.wait_for_all()
    bits.run(small_config(*words, "rounds=4"), origin=Origin.named(str(bits.folder / "parent")))
    bits.check(bits.alone(small_config(*words, "rounds=4")))

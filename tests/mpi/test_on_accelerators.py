"""Runs whose workers train on pretend accelerators, one each, against the CPU of one process: the same bits."""

import method_cases
import pytest
from fast import fast
from pretend import device
from pretend.runs import with_accelerators
from same_bits import Bits
from small_runs import small_config

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(not device.IS_POSSIBLE, reason="this torch registers devices in C++ only"),
]


@pytest.mark.parametrize("case", fast("fedhm", "fedhm-delta-low", "hermes-all", of=method_cases.CASES, slow=()))
def test_every_method_keeps_its_bits(bits: Bits, case: str) -> None:
    """Two rounds by gather and, resumed, a third by reduce; the server shares a worker's device."""
    words = (*method_cases.CASES[case], "evaluation.personal=on")
    for rounds, exchange in ((2, "gather"), (3, "reduce")):
        own = (f"rounds={rounds}", f"mpi.exchange={exchange}")
        with with_accelerators() as pinned, device.log.kept() as events:
            bits.run(small_config(*words, *own), resume=rounds == 3)
        bits.on_all_ranks(bool(device.of(events, "new")), "nothing was computed on the device")
        if exchange == "gather":
            bits.on_all_ranks(bool(pinned), "uploads travel through memory that is not page-locked")
        bits.on_all_ranks(not device.of(events, "across"), "a rank uses two devices")
    bits.check(bits.alone(small_config(*words, "rounds=3")))

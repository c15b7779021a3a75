"""Nets drawn at random: plan, `fedmpi check` and run accept the same ones, and the bits are those of one process."""

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from drawn_nets import words_of
from same_bits import Bits
from small_runs import run_all, small_config

from fedmpi.check.bits import bits_stay
from fedmpi.check.contract import BrokenError
from fedmpi.check.things import checks_of
from fedmpi.errors import UserError
from fedmpi.running.forecast import forecast

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.nightly]
COUNT = int(os.environ.get("FEDMPI_TEST_EXAMPLES", "200"))


def refusal(action: Callable[[], None]) -> str:
    """Returns the line of a net that is refused, else ''. Every other error is one of ours."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            action()
        except (UserError, BrokenError) as error:
            return str(error)
    return ""


def check(words: tuple[str, ...], folder: Path) -> None:
    """Does what `fedmpi check` does in one process."""
    for _, part in checks_of("model", folder, words):
        part()
    bits_stay(folder, words, 1)


@pytest.mark.parametrize("number", range(COUNT))
def test_check_and_run_agree(number: int, bits: Bits) -> None:
    comm = bits.comm
    words = words_of(number)
    with bits.all_or_none():
        checked = comm.allgather_object(refusal(lambda: check(words, bits.folder)) if comm.is_root else "")[0]
        planned = refusal(lambda: forecast(small_config(*words), comm.size))
        ran = refusal(lambda: run_all(small_config(*words), comm, bits.folder / "run"))
    bits.on_all_ranks(bool(planned) == bool(ran), f"{words}: the plan says {planned!r}, the run {ran!r}")
    agrees = bool(checked) == bool(ran) and "\n" not in ran
    bits.on_all_ranks(agrees, f"{words}: check says {checked!r}, the run {ran!r}")
    if not ran:
        bits.check(bits.alone(small_config(*words)))

"""Nets drawn at random: plan, `fedmpi check` and run accept the same ones, and the bits are those of one process."""

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from drawn_nets import words_of
from small_runs import finished, run_all, small_config

from fedmpi.check.bits import bits_stay, difference
from fedmpi.check.contract import BrokenError
from fedmpi.check.things import checks_of
from fedmpi.errors import UserError
from fedmpi.mpi.communicator import Communicator, SerialComm
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
def test_check_and_run_agree(number: int, comm: Communicator, tmp_path: Path, on_all_ranks: Callable) -> None:
    words = words_of(number)
    folder = Path(comm.allgather_text(str(tmp_path))[0])
    checked = comm.allgather_text(refusal(lambda: check(words, folder)) if comm.is_root else "")[0]
    planned = refusal(lambda: forecast(small_config(*words), comm.size))
    ran = refusal(lambda: run_all(small_config(*words), comm, folder / "run"))
    on_all_ranks(bool(planned) == bool(ran), f"{words}: the plan says {planned!r}, the run {ran!r}")
    on_all_ranks(bool(checked) == bool(ran) and "\n" not in ran, f"{words}: check says {checked!r}, the run {ran!r}")
    found = ""
    if comm.is_root and not ran:
        with redirect_stdout(io.StringIO()):
            run_all(small_config(*words), SerialComm(), folder / "alone")
        found = difference(finished(folder / "run"), finished(folder / "alone"))
    on_all_ranks(not found, f"{words}: {found}")

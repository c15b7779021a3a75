"""How the ranks of a job end that went well, or stopped early: soon, with all that they had to say and do."""

from collections.abc import Sequence

import pytest
from fast import fast
from launched import ULFM, Start

# Python takes the modules apart last of all, `mark` among them; with torch that is a second of work for each rank.
MARKS = """
import atexit
class Mark:
    def __del__(self):
        os.write(2, b"taken apart\\n")
mark = Mark()
atexit.register(lambda: sys.stdout.write("registered for the end\\n"))"""


STOPS = ("mpi.time_limit_s=0.001",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words", "code"),
    fast(((), (), 0), of=[((), (), 0), (ULFM, (), 0), ((), STOPS, 75), (ULFM, STOPS, 75)], slow=[(ULFM, STOPS, 75)]),
)
def test_ranks_do_what_is_registered_and_are_gone(
    start: Start, options: Sequence[str], words: Sequence[str], code: int
) -> None:
    """Each rank flushes its output, and the exit code stays."""
    launched = start(2, "rounds=2", *words, patch=MARKS, options=options)
    assert launched.wait() == code, launched.err
    assert launched.out.count("registered for the end") == 2
    assert "taken apart" not in launched.err

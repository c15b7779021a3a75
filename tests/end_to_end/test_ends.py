"""How the ranks of a job end: soon, with all that they had to say and do; mpirun adds no line and has their code."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from fast import fast
from launched import ULFM, Start
from small_runs import SMALL, finished, undisturbed

from fedmpi.check.bits import difference

pytestmark = pytest.mark.slow

# Python takes the modules apart last of all, `mark` among them; with torch that is a second of work for each rank.
MARKS = """
import atexit
class Mark:
    def __del__(self):
        os.write(2, b"taken apart\\n")
mark = Mark()
atexit.register(lambda: sys.stdout.write("registered for the end\\n"))"""
STOPS = ("mpi.time_limit_s=0.001",)


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


SCRIPT = """
import sys
import fedmpi
from fedmpi.config.load import load

run = fedmpi.run(load(None, sys.argv[2:]), sys.argv[1])
sys.stdout.write(f"read {[score.last.accuracy for score in run.scores.values()]}\\n")
"""


def test_a_program_under_mpirun(start: Start, tmp_path: Path) -> None:
    """A user's own, started from a shell: it makes a run, reads it on every rank, and ends."""
    (tmp_path / "program.py").write_text(SCRIPT)
    words = ("method.name=fedavg", "rounds=2")
    launched = start(3, str(tmp_path / "run"), *SMALL, *words, program=[str(tmp_path / "program.py")], small=False)
    assert launched.wait() == 0, launched.err
    read = [line for line in launched.out.splitlines() if line.startswith("read ")]
    assert len(read) == 3 and len({*read}) == 1
    assert difference(finished(tmp_path / "run"), undisturbed(tmp_path, *words)) == ""


def test_a_mistake_that_ranks_find_together_is_the_only_line(start: Start, tmp_path: Path) -> None:
    """After MPI has started."""
    (tmp_path / "file").touch()
    launched = start(2, "--run-dir", str(tmp_path / "file"), "output.progress=off")
    assert launched.wait() == 2
    assert str(tmp_path / "file") in launched.err and launched.err.count("\n") == 1


def test_a_divergence_is_all_that_is_printed(start: Start) -> None:
    """Both workers diverge; one rank prints it."""
    launched = start(3, "train.lr=1e12", "method.name=fedavg")
    assert launched.wait() == 1
    assert launched.err.count("fedmpi: failed on rank ") == 1 and "abort" not in launched.err.lower()

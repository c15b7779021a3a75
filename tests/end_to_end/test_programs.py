"""A user's program under mpirun, as it is started from a shell: it makes a run, reads it on every rank, and ends."""

from pathlib import Path

import pytest
from launched import Start
from small_runs import SMALL, finished, undisturbed

from fedmpi.check.bits import difference

WORDS = ("method.name=fedavg", "rounds=2")
SCRIPT = """
import sys
import fedmpi
from fedmpi.config.load import load

run = fedmpi.run(load(None, sys.argv[2:]), sys.argv[1])
sys.stdout.write(f"read {[score.last.accuracy for score in run.scores.values()]}\\n")
"""


@pytest.mark.slow
def test_a_program_under_mpirun(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    launched = start(3, str(tmp_path / "run"), *SMALL, *WORDS, program=[str(script)], small=False)
    assert launched.wait() == 0, launched.err
    read = [line for line in launched.out.splitlines() if line.startswith("read ")]
    assert len(read) == 3 and len({*read}) == 1
    assert difference(finished(tmp_path / "run"), undisturbed(tmp_path, *WORDS)) == ""

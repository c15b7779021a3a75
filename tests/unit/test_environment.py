"""Environment variables are input like any other: whatever they hold, a command ends with an answer."""

import os
import subprocess
from pathlib import Path

import pytest

from fedmpi.mpi.launch import whole_number

ROOT = Path(__file__).parents[2]


def test_whole_numbers() -> None:
    for text, number in (("0", 0), ("007", 7), ("9" * 18, 10**18 - 1)):
        assert whole_number({"A": text}, "A") == number
    for text in ("", " 1", "1 ", "+1", "-1", "1_0", "1.0", "\u00b2", "\u0661", "9" * 19, "9" * 5_000):
        assert whole_number({"A": text}, "A") is None, text
    assert whole_number({}, "A") is None


@pytest.mark.parametrize(
    ("value", "code"), [("3", 0), ("", 0), ("x", 2), ("0", 2), ("-1", 2), ("9" * 99, 2), ("1 2", 2)]
)
def test_numbers_that_the_scripts_read(value: str, code: int) -> None:
    function = "source <(sed -n '/^mistake()/,/^}/p' jobs/setup.sh)"
    script = f"{function}; set -e; ranks=$(whole_number FEDMPI_RANKS 5); echo $ranks"
    environment = {**os.environ, "FEDMPI_RANKS": value}
    done = subprocess.run(["bash", "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "" if code else f"{value or 5}\n")
    assert done.stderr.count("\n") == (code == 2)

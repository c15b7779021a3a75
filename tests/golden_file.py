"""Compares a text with a file of `golden/`; a file that is not there is written, and the test fails once."""

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def check_golden(name: str, text: str) -> None:
    """To change it: delete the file, run the test twice, and read the difference."""
    path = GOLDEN / name
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path} was missing; now it has what this test produced: read it")
    assert text == path.read_text(), f"if this is what it should be, delete {path} and run the test again"

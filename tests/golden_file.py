"""The fixture `told`: a test's messages are compared with its snapshot (syrupy), without places and times.

`python -m pytest TEST --snapshot-update` writes what is new or has changed; the difference is for review.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

ROOT = Path(__file__).resolve().parents[1]
VARYING = (r"(?<=\.py:)\d+", r"(?<=127\.0\.0\.1:)\d+", r"(?<=by pid )\d+", r"\b[0-9a-f]{32}\b", r"x{200,}")
"""Line numbers, ports, processes, digests of one kind of CPU, and names that are made as long as a disk allows."""


class Told:
    """Collects the messages of one test. `told(text)` takes a text, `with told.by(ErrorClass):` that of an error."""

    def __init__(self, folder: Path, snapshot: SnapshotAssertion) -> None:
        self._folder = folder
        self._snapshot = snapshot
        self._texts: list[str] = []

    def __call__(self, text: str, *varying: str) -> None:
        """Writes TMP for the test's folder, TESTS for that of all tests, HERE for the project, and `...` for matches of
        `varying` and `VARYING`.
        """
        for part in (*varying, *VARYING):
            text = re.sub(part, "...", text)
        for path, name in ((self._folder, "TMP"), (self._folder.parent, "TESTS"), (ROOT, "HERE")):
            text = text.replace(str(path), name)
        text = "\n    ".join(text.rstrip("\n").splitlines())
        if self._texts[-1:] != [text]:  # a repeated message stands once
            self._texts.append(text)

    @contextmanager
    def by(
        self, kind: type[Exception] | tuple[type[Exception], ...], *varying: str
    ) -> Iterator[pytest.ExceptionInfo[Exception]]:
        with pytest.raises(kind) as caught:
            yield caught
        self(str(caught.value), *varying)

    def compare(self) -> None:
        if self._texts:
            assert "\n".join(self._texts) == self._snapshot


@pytest.fixture
def told(tmp_path: Path, snapshot: SnapshotAssertion) -> Told:
    return Told(tmp_path, snapshot)

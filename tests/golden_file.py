"""Texts that users see, compared with files of `golden/`; what is not there is written, and the test fails once."""

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).resolve().parents[1]
VARYING = (r"(?<=\.py:)\d+", r"(?<=127\.0\.0\.1:)\d+", r"(?<=by pid )\d+", r"\b[0-9a-f]{32}\b", r"x{200,}")
"""Lines of modules, ports, processes, digests of what a CPU of one kind computes, and names that are made as long as a
disk allows."""


def check_golden(name: str, text: str) -> None:
    """To change it: delete the file, run the test twice, and read the difference."""
    path = GOLDEN / name
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path} was missing; now it has what this test produced: read it")
    assert text == path.read_text(), f"if this is what it should be, delete {path} and run the test again"


class Told:
    """What one test is told, in order: its section of the file of its module in `golden/told/`, compared when the test
    has passed. `told(text)` takes a text, and a block `with told.by(ErrorClass):` that of the error that ends it. A
    section that is named without parameters is that of all parameters that have none of their own.
    """

    def __init__(self, module: Path, test: str, folder: Path) -> None:
        self.path = GOLDEN / "told" / module.relative_to(GOLDEN.parent).with_suffix(".txt")
        self._name, self._folder = test, folder
        self._texts: list[str] = []

    def __call__(self, text: str, *varying: str) -> None:
        """The test's folder is TMP there, that of all tests TESTS, and the project HERE; what matches one of `varying`
        or of `VARYING` is `...`.
        """
        for part in (*varying, *VARYING):
            text = re.sub(part, "...", text)
        for path, name in ((self._folder, "TMP"), (self._folder.parent, "TESTS"), (ROOT, "HERE")):
            text = text.replace(str(path), name)
        text = "\n    ".join(text.rstrip("\n").splitlines())
        if self._texts[-1:] != [text]:  # what is told again and again stands once
            self._texts.append(text)

    @contextmanager
    def by(
        self, kind: type[Exception] | tuple[type[Exception], ...], *varying: str
    ) -> Iterator[pytest.ExceptionInfo[Exception]]:
        with pytest.raises(kind) as caught:
            yield caught
        self(str(caught.value), *varying)

    def compare(self) -> None:
        found, all_known = "\n".join(self._texts), sections(self.path)
        known = all_known.get(self._name, all_known.get(self._name.partition("[")[0]))
        if known is None and found:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"== {self._name}\n{found}\n\n")
            pytest.fail(f"{self.path} had no section of this test; now it has one: read it")
        if (known or "") != found:
            difference = difflib.unified_diff((known or "").splitlines(), found.splitlines(), "known", "told")
            way = f"if this is what it should be, delete the section in {self.path} and run the test again"
            pytest.fail("\n".join([*difference, way]))


def sections(path: Path) -> dict[str, str]:
    """By the names of tests."""
    parts = re.split(r"^== ", path.read_text("utf-8") if path.exists() else "", flags=re.MULTILINE)[1:]
    return {name: text.rstrip("\n") for name, _, text in (part.partition("\n") for part in parts)}


@pytest.fixture
def told(request: pytest.FixtureRequest, tmp_path: Path) -> Told:
    return Told(request.path, request.node.name, tmp_path)

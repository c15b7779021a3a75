"""What the end-to-end tests share: whatever a test has started is ended with it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launched import Launched, Start, command, launch
from small_runs import SMALL

from fedmpi.main import main


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(ranks, *arguments, program=...)`: the command on small data, under way."""
    under_way: list[Launched] = []

    def begin(ranks: int, *arguments: str, small: bool = True, **program: object) -> Launched:
        words = command(ranks, *(SMALL if small else ()), *arguments, **program)
        under_way.append(launch(tmp_path, words))
        return under_way[-1]

    yield begin
    for launched in under_way:
        if launched.process.poll() is None:
            launched.kill()


@pytest.fixture
def run_main(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`run_main(*arguments)`: the command in this process; its exit code, output and errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(list(arguments))
        return (code, *capfd.readouterr())

    return call

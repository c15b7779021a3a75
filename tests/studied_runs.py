"""For the tests of `fedmpi.results`: a small config in a file, and commands that run in this process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_config

from fedmpi.config import yaml_text


def write_config(path: Path, *overrides: str) -> Path:
    """A config of 48 examples and four clients, of whom two train in a round."""
    fast = ("data.num_train=48", "data.num_test=16", "clients.count=4", "clients.per_round=2", "clients.tier_blocks=[]")
    path.write_text(yaml_text.dump(small_config(*fast, *overrides).to_dict()))
    return path


Called = Callable[..., tuple[int, str, str]]
"""What a program answers to its words: exit code, stdout, stderr."""


def calling(main: Callable[[Sequence[str]], int], *always: str) -> Any:
    """The fixture `called` of a program, with the words that it is always given last."""

    @pytest.fixture
    def called(capsys: pytest.CaptureFixture[str]) -> Called:
        def answer(*words: object) -> tuple[int, str, str]:
            capsys.readouterr()  # what was printed before is no answer
            return main([*map(str, words), *always]), *capsys.readouterr()

        return answer

    return called

"""What a user reads: one line a problem, and exit code 2."""

import pytest

from fedmpi.errors import ConfigError, DataError, DeviceError, DivergenceError, RoundError, RunDirError, UserError


def test_one_problem_is_one_line() -> None:
    error = ConfigError("a.yaml", "train.lr: expected a number > 0, got 'x'")
    assert str(error) == error.text() == "a.yaml: train.lr: expected a number > 0, got 'x'"


def test_several_problems_are_a_line_each() -> None:
    assert ConfigError("a.yaml", "first", "second").text() == "a.yaml: 2 problems\n  first\n  second"


def test_what_would_write_to_a_terminal_is_escaped() -> None:
    """Text of servers and files gets into problems; letters of any language stay."""
    error = DataError("a\nb", "HTTP 404 \x1b[31mno\r\n\udcff größer")
    assert str(error) == error.text() == "a\\nb: HTTP 404 \\x1b[31mno\\r\\n\\udcff größer"


@pytest.mark.parametrize("kind", [ConfigError, DataError, DeviceError, RunDirError])
def test_every_user_error_exits_with_2(kind: type[UserError]) -> None:
    """`main` tells failures apart by type: one in a round ends all ranks with code 1."""
    assert kind("here", "wrong").exit_code == 2
    assert not issubclass(RoundError, UserError) and not issubclass(DivergenceError, UserError)

"""What a user reads: one line a problem, and exit code 2."""

from fedmpi.errors import ConfigError, DataError


def test_several_problems_are_a_line_each() -> None:
    assert ConfigError("a.yaml", "first", "second").text() == "a.yaml: 2 problems\n  first\n  second"


def test_what_would_write_to_a_terminal_is_escaped() -> None:
    """Text of servers and files gets into problems; letters of any language stay."""
    error = DataError("a\nb", "HTTP 404 \x1b[31mno\r\n\udcff größer")
    assert str(error) == error.text() == "a\\nb: HTTP 404 \\x1b[31mno\\r\\n\\udcff größer"

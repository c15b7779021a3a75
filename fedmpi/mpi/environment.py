"""Numbers in environment variables, which are input like any other: they may hold anything."""

from __future__ import annotations

from collections.abc import Mapping

# More digits than any count or time has, and few enough for `int` and for a float.
_MOST_DIGITS = 18


def whole_number(environment: Mapping[str, str], name: str, at_most: int = 10**_MOST_DIGITS) -> int | None:
    """The whole number from 0 to `at_most` that the variable `name` holds; None if it is unset or holds anything else.

    Only ASCII digits count: `int` would also read "+1", "1_000" and the digits of other scripts.

    >>> whole_number({"PMI_SIZE": "4"}, "PMI_SIZE"), whole_number({"PMI_SIZE": "4 "}, "PMI_SIZE")
    (4, None)
    """
    text = environment.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        return None
    return number if (number := int(text)) <= at_most else None

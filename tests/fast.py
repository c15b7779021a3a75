"""Chooses the parameters of the fast run: the mark `slow` goes to others, which run with `--all`, or `nightly`."""

from collections.abc import Iterable
from typing import Any

import pytest


def fast(*chosen: Any, of: Iterable[Any], but_on: int | None = None, slow: Iterable[Any] | None = None) -> list[Any]:
    """The values of `of` as parameters; those not in `chosen` are slow (on any number of ranks, or all `but_on`); where
    the values of `slow` are given, the rest is for the nightly script.

    >>> @pytest.mark.parametrize("case", fast("fedhm", of=CASES))
    """
    values = list(of)
    assert all(value in values for value in chosen), f"{chosen} are not all in {values}"
    mark = pytest.mark.slow if but_on is None else pytest.mark.slow(but_on=but_on)
    in_ci = values if slow is None else list(slow)
    return [
        value if value in chosen else _marked(value, mark if value in in_ci else pytest.mark.nightly)
        for value in values
    ]


def _marked(value: Any, mark: pytest.MarkDecorator) -> Any:
    return pytest.param(*value, marks=mark) if isinstance(value, tuple) else pytest.param(value, marks=mark)

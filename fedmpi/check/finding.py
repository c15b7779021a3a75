"""Holds one line of the page: what was looked at, how it is, what was found, and what to do."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

from fedmpi.errors import one_line

_WIDTH = 80
_INDENT = 26


@dataclass(frozen=True)
class Finding:
    """`advice` says what to do, and is empty where the state is `ok`. A `problem` ends a run."""

    name: str
    state: Literal["ok", "warning", "problem"]
    found: str
    advice: str = ""

    def line(self) -> str:
        """Returns the line of the page: wrapped at 80 columns, the advice on lines of its own."""
        head = f"{self.state:8} {self.name:16} "
        lines = textwrap.wrap(one_line(self.found), _WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False)
        if self.advice:
            lines += textwrap.wrap(f"-> {one_line(self.advice)}", _WIDTH - _INDENT, break_long_words=False)
        return head + f"\n{' ' * _INDENT}".join(lines)


def ok(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


def warning(name: str, found: str, advice: str) -> Finding:
    return Finding(name, "warning", found, advice)


def problem(name: str, found: str, advice: str) -> Finding:
    return Finding(name, "problem", found, advice)

"""Holds one line of the page: what was looked at, how it is, what was found, and what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import fedmpi
from fedmpi.errors import counted, one_line

State = Literal["ok", "warning", "problem"]
"""From harmless to what ends a run."""
_WIDTH = 80
_INDENT = 26


@dataclass(frozen=True)
class Finding:
    """`advice` says what to do, and is empty where the state is `ok`."""

    name: str
    state: State
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


def is_ready(findings: Sequence[Finding]) -> bool:
    return all(finding.state != "problem" for finding in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """Returns the last line of the page."""
    problems = sum(finding.state == "problem" for finding in findings)
    warnings = sum(finding.state == "warning" for finding in findings)
    counts = f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}"
    return f"{'ready' if is_ready(findings) else 'not ready'}: {counts}"


def as_json(findings: Sequence[Finding], ranks: int) -> dict[str, Any]:
    """Returns what `--json` prints: `format`, `fedmpi`, `ranks`, `ready`, and `findings` by name."""
    return {
        "format": 1,
        "fedmpi": fedmpi.__version__,
        "ranks": ranks,
        "ready": is_ready(findings),
        "findings": {
            finding.name: {key: value for key, value in asdict(finding).items() if key != "name"}
            for finding in findings
        },
    }

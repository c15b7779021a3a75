"""Whose rounds the records of a run are: a branch (`--resume-from`) begins with those of the run that it branches from.

Whatever sums up a run (its best and last accuracy, its bytes, its time) is of the run's own rounds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedmpi.errors import one_line
from fedmpi.report.records import BRANCHED_FROM, Record

_CHANGE = re.compile(r"(.+?): run has (.+), you ask (.+)")
"""As `Config.diff` has it."""


@dataclass(frozen=True)
class Parent:
    """What a branch begins from: after which round of which run, and the settings that it changes, a text for each."""

    run: str
    round: int
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`RUN@3`, without the folder that the run is in."""
        return f"{one_line(os.path.basename(self.run))}@{self.round}"

    def changed(self) -> str:
        """`train.lr 0.01 instead of 0.1; method.name 'heterofl' instead of 'fedhm'`; empty for the same settings."""
        found = (_CHANGE.sub(r"\1 \3 instead of \2", change) for change in self.changes)
        return "; ".join(map(one_line, found))

    @property
    def whose(self) -> str:
        """Whose the first rounds are, in words that a sentence begins with."""
        if self.round == 1:
            return f"round 1 is that of {self.run}"
        return f"rounds 1 to {self.round} are those of {self.run}"


@dataclass(frozen=True)
class Lineage:
    """The records of a run, divided at the round after which it branches from another; all are its own without one."""

    inherited: Sequence[Record]
    own: Sequence[Record]
    parent: Parent | None = None


def lineage(records: Sequence[Record]) -> Lineage:
    """`records` are in the order of rounds. Of a branch of a branch all but the last one's rounds are inherited."""
    for record in reversed(records):
        match record.get(BRANCHED_FROM):
            case {"run": str(run), "round": int(number), **more}:
                found = more.get("config")
                changes = tuple(map(str, found)) if isinstance(found, list) else ()
                own = [one for one in records if one["round"] > number]
                inherited = [one for one in records if one["round"] <= number]
                return Lineage(inherited, own, Parent(run, number, changes))
    return Lineage((), records)

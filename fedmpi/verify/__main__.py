"""The command `python -m fedmpi.verify [PAPER ...]`: prints paper, ours and verdict, and exits with 1 if one changed.

Verdicts: `equal`, ours rounds to the digits that are printed; `slip`, the paper's own mistake; `not
reproduced`, no reading gives what is printed. They are on record, and for the last two what ours was:
a change in either direction is a failure. What is printed and cannot be checked is listed with the reason.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from importlib import import_module

from fedmpi.command.manners import Parser, run_command
from fedmpi.papers import PAPERS, PapersError, read
from fedmpi.verify.claims import Checked, Claim, check, claims
from fedmpi.verify.nets import params_of_cell

_HEADS = ("where", "what", "paper", "ours", "verdict")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 1 for a verdict that no longer holds, 2 for a user's mistake."""
    parser = Parser("python -m fedmpi.verify", __doc__)
    parser.add_argument("papers", nargs="*", metavar="PAPER", help=f"{', '.join(PAPERS)}; all if none is named")
    return run_command(lambda: _verify(parser.parse_args(argv).papers or PAPERS))


def _verify(papers: Sequence[str]) -> int:
    if unknown := [paper for paper in papers if paper not in PAPERS]:
        raise PapersError("command line", f"no paper '{unknown[0]}'; allowed: {', '.join(PAPERS)}")
    found = {paper: [check(claim) for claim in claims_of(paper)] for paper in papers}
    for paper, checked in found.items():
        print(f"{paper}: {read(paper).source}", *_lines(checked), "", sep="\n")
    everything = [checked for of_paper in found.values() for checked in of_paper]
    print(_summary(everything))
    return 1 if any(checked.problem for checked in everything) else 0


def claims_of(paper: str) -> list[Claim]:
    return claims(read(paper), import_module(f"fedmpi.verify.paper_{paper}").CHECKS, params_of_cell)


def _lines(found: Sequence[Checked]) -> list[str]:
    """A table; what is not equal has its reason below it, a problem is marked."""
    rows = [_HEADS, *(_cells(checked) for checked in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = []
    for row, checked in zip(rows, [None, *found], strict=True):
        lines.append(
            "  " + "  ".join([*map(str.ljust, row[:2], widths), *map(str.rjust, row[2:4], widths[2:]), row[4]])
        )
        if checked is not None:
            fact = checked.claim.fact
            below = {"      ": fact.why, "      not checked: ": fact.unchecked, "   !! ": checked.problem}
            lines += [mark + text for mark, text in below.items() if text]
    return lines


def _cells(checked: Checked) -> tuple[str, ...]:
    fact = checked.claim.fact
    unit = f" {fact.unit}" if fact.unit else ""
    ours, verdict = checked.ours + unit, fact.verdict.replace("_", " ")
    if fact.unchecked:
        ours, verdict = "-", "not checked" if fact.verdict == "equal" else f"{verdict}, not checked"
    return fact.where, fact.what, fact.printed + unit, ours, verdict


def _summary(found: Sequence[Checked]) -> str:
    counts = Counter(checked.claim.fact.verdict for checked in found if not checked.claim.fact.unchecked)
    changed = sum(bool(checked.problem) for checked in found)
    parts = f"{counts['equal']} equal, {counts['slip']} slips of the papers, {counts['not_reproduced']} not reproduced"
    result = f"{changed} NOT as recorded" if changed else "all as recorded"
    skipped = len(found) - counts.total()
    more = f"; {skipped} more on record are not checked, each for the reason above" if skipped else ""
    return f"{counts.total()} facts: {parts}; {result}{more}"


if __name__ == "__main__":
    sys.exit(main())

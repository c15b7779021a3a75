"""Each number that a paper prints of sizes, compute and bytes, against nets that are built."""

import importlib
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from papers import claims
from papers.claims import Claim, Ours
from papers.nets import size_of

PAPERS = ("fedhm", "prism", "hermes", "fdnnc")


def checks(paper: str) -> Iterator[tuple[Claim, Callable[[], Ours] | None]]:
    """Yields each claim of a paper, and how ours is computed."""
    module = importlib.import_module(f"papers.ours_{paper}")
    for claim in claims.facts(paper):
        yield claim, module.FACTS.get(claim.key)
    for table, compute in module.CELLS.items():
        for claim, cell in claims.cells(paper, table):
            if claim.printed and (cell.run or claim.unchecked or table in claims.document(paper).get("tables", ())):
                yield claim, partial(compute, cell)
    for claim, cells in claims.sizes(paper):
        runs = [(cell.run, cell.given.net) for cell in cells]
        yield claim, lambda runs=runs: claims.common([size_of(paper, *run) for run in runs])


SLOW = {"fedhm": pytest.mark.slow, "prism": pytest.mark.slow}
CLAIMS = [
    pytest.param(*check, id=f"{paper}: {check[0].key}", marks=SLOW.get(paper, ()))
    for paper in PAPERS
    for check in checks(paper)
]


@pytest.mark.parametrize(("claim", "ours"), [one for one in CLAIMS if not one.values[0].unchecked])
def test_a_number_is_as_recorded(claim: Claim, ours: Callable[[], Ours]) -> None:
    assert claims.problem(claim, ours()) == ""


def test_every_printed_number_is_checked_or_says_why_not() -> None:
    unchecked = {one.id for one in CLAIMS if one.values[0].unchecked}
    assert len(CLAIMS) == 270 and len(unchecked) == 5

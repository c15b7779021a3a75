"""Each number that a paper prints of sizes, compute and bytes, against nets that are built."""

import importlib
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from papers import claims
from papers.claims import Claim, Ours
from papers.nets import size_of


def checks(paper: str) -> Iterator[tuple[Claim, Callable[[], Ours]]]:
    """Yields each claim of a paper, and how ours is computed."""
    module = importlib.import_module(f"papers.ours_{paper}")
    for claim in claims.facts(paper):
        yield claim, module.FACTS[claim.key]
    for claim, table, column, row in claims.own_tables(paper):
        yield claim, partial(module.TABLES[table], column, row)
    for table, compute in module.CELLS.items():
        for claim, cell in claims.cells(paper, table):
            yield claim, partial(compute, cell)
    for claim, cells in claims.sizes(paper):
        runs = [(cell.run, cell.net) for cell in cells]
        yield claim, lambda runs=runs: claims.common([size_of(paper, *run) for run in runs])


LARGE = ("table3/Hermes", "figure10")
"""Claims for which nets of 134 M numbers are pruned and cut."""
PAPERS = {"fedhm": pytest.mark.slow, "prism": pytest.mark.slow, "hermes": (), "fdnnc": ()}
CLAIMS = [
    pytest.param(
        *check, id=f"{paper}: {check[0].key}", marks=pytest.mark.slow if check[0].key.startswith(LARGE) else marks
    )
    for paper, marks in PAPERS.items()
    for check in checks(paper)
]


@pytest.mark.parametrize(("claim", "ours"), CLAIMS)
def test_a_number_is_as_recorded(claim: Claim, ours: Callable[[], Ours]) -> None:
    assert claims.problem(claim, ours()) == ""


def test_every_printed_number_is_checked() -> None:
    assert len(CLAIMS) == 295

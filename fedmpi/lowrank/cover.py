"""Which share of a cohort holds what of a factorized layer (`correction.py`).

Loads without torch, because methods do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Cover:
    """Which share of the contributing clients' weight holds the triplets of a layer.

    `of[r]` is c_k of every k up to r and beyond the next smaller key, ascending (of rank ratios likewise); `dense` is
    the share of the dense clients, who hold all triplets.
    """

    of: Mapping[float, float]
    dense: float

    @classmethod
    def by(cls, clients: Iterable[tuple[float | None, float]]) -> Cover:
        """The cover of clients that are given as (r, weight), r None for a dense one; the order of clients does not
        matter.
        """
        found = list(clients)
        total = math.fsum(weight for _, weight in found)

        def share(least: float) -> float:
            return math.fsum(weight for r, weight in found if r is None or r >= least) / total

        ranks = sorted({r for r, _ in found if r is not None})
        return cls({r: share(r) for r in ranks}, share(math.inf))

    def at(self, r: float) -> float:
        """c_k of k = r."""
        return next((share for largest, share in self.of.items() if r <= largest), self.dense)

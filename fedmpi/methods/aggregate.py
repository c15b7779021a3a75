"""How the uploads of a phase become the server's tensors: by an exact weighted mean, by a robust aggregate
(`robust`), or by a class of the user's.

`method.aggregate: package.module:Class` names such a class; `tests/examples/trimmed_mean.py` is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from fedmpi.config.fields import Section
from fedmpi.errors import UnknownError
from fedmpi.exactsum import ExactSum
from fedmpi.methods import robust
from fedmpi.registry import import_object
from fedmpi.tensors import Region, Spec

Specs = Mapping[str, Spec]


class Aggregate(Protocol):
    """Makes each tensor of the server out of what clients have sent in one phase. A new one is made for each phase.

    Uploads arrive in an order that depends on the ranks, so a result must not depend on it: an exact sum does not, and
    one that keeps uploads by client number computes in that order. A class that has `begin(state)` is given the
    server's tensors, by their names here, before the first `result`.
    """

    def __init__(self, specs: Specs, bounds: Mapping[str, float], total_weight: float, device: str) -> None:
        """Takes shape and type of each tensor, the largest |x| of its entries, and the weight of the whole cohort."""

    def add(self, client: int, name: str, value: Tensor, weight: float, region: Region | None) -> None:
        """Takes what a client has sent of tensor `name`: all of it, or the entries of `region`. Copies what it keeps.

        `weight` is in (0, 1], 1 for the client of the largest weight.
        """

    def result(self, name: str, weight: float | Tensor, otherwise: Tensor) -> Tensor:
        """Returns the server's tensor, in the shape and type of `otherwise`, which is its value so far.

        `weight` is the sum of the weights of the clients that have sent it: a number, or float64 of its shape. Entries
        that nobody has sent keep their value.
        """


class ExactMean:
    """The weighted mean, by sums of whole numbers whose bits depend on no order (`exactsum`)."""

    def __init__(self, specs: Specs, bounds: Mapping[str, float], total_weight: float, device: str) -> None:
        self._sums = ExactSum(specs, bounds, total_weight, device)
        self.buffer = self._sums.buffer
        """All sums, int64, which ranks may add up."""

    def add(self, client: int, name: str, value: Tensor, weight: float, region: Region | None) -> None:
        self._sums.add(name, value, weight, region)

    def result(self, name: str, weight: float | Tensor, otherwise: Tensor) -> Tensor:
        return self._sums.mean(name, weight, otherwise)


def named(name: robust.Rule) -> Callable[[Specs, Mapping[str, float], float, str], Aggregate]:
    """Returns what makes the aggregate that `method.aggregate` names. Raises `UnknownError`."""
    if name == "mean":
        return ExactMean
    if isinstance(name, Section):
        return name.aggregate
    found = import_object(name)
    if not isinstance(found, type) or not hasattr(found, "add") or not hasattr(found, "result"):
        raise UnknownError(f"{name!r} is not a class with add and result")
    return found

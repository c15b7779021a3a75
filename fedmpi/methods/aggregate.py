"""How the uploads of a phase become the server's tensors: by an exact weighted mean, by a robust aggregate
(`robust`), or by a class of the user's.

`method.aggregate: package.module:Class` names such a class; `tests/examples/trimmed_mean.py` is one.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from fedmpi.config.fields import Section
from fedmpi.errors import ConfigError, UnknownError, type_in_words, users_code
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
    if not is_aggregate(found):
        raise UnknownError(f"{name!r} is not a class with add and result")
    made: type[Aggregate] = found
    return made


def is_aggregate(found: object) -> bool:
    return isinstance(found, type) and hasattr(found, "add") and hasattr(found, "result")


def least_uploads(rule: robust.Rule) -> int:
    """Returns how many uploads of a phase an aggregate needs; with fewer the server's state stays as it is."""
    return getattr(rule, "least_uploads", 1)


def is_own(name: robust.Rule) -> bool:
    """Returns whether `method.aggregate` names a class of the user's."""
    return isinstance(name, str) and name != "mean"


def checked(rule: robust.Rule, name: str, value: object, otherwise: Tensor) -> Tensor:
    """Returns what the aggregate of `rule` has made of the tensor `name`. Raises `ConfigError` where a user's own
    returns something that cannot take the place of `otherwise`.
    """
    if not is_own(rule):
        assert isinstance(value, Tensor)
        return value
    found = type_in_words(value)
    if isinstance(value, Tensor):
        found = _in_words(value)
        if found == _in_words(otherwise):
            if value.isfinite().all():
                return value
            found = "numbers that are not finite"
    problem = f"{rule} returns {found} for {name!r}; expected finite numbers, {_in_words(otherwise)}, as `otherwise`"
    raise ConfigError("method.aggregate", problem)


def _in_words(tensor: Tensor) -> str:
    return f"a tensor {tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}"


def check(rule: robust.Rule, num_clients: int) -> None:
    """Tries a class of the user's on two small tensors that each client sends. Raises `ConfigError`."""
    if not is_own(rule):
        return
    state = {"weight": torch.arange(6.0).reshape(3, 2), "bias": torch.ones(3)}
    specs = {name: Spec(tuple(value.shape)) for name, value in state.items()}
    bounds = dict.fromkeys(state, 64.0)
    with users_code("method.aggregate", f"{rule} failed on the uploads of {num_clients} clients", ConfigError):
        made = named(rule)(specs, bounds, float(num_clients), "cpu")
        for client in range(num_clients):
            for name, value in state.items():
                made.add(client, name, value + client / num_clients, 1.0, None)
        if hasattr(made, "begin"):
            made.begin({**state})
        for name, value in state.items():
            checked(rule, name, made.result(name, float(num_clients), value.clone()), value)

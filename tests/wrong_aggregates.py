"""Aggregates that return what cannot be the server's tensor."""

from typing import Any

import torch
from torch import Tensor


class Last:
    """Keeps what arrived last; right in all but the result."""

    def __init__(self, *_: object) -> None:
        self.sent: dict[str, Tensor] = {}

    def add(self, client: int, name: str, value: Tensor, weight: float, region: object) -> None:
        self.sent[name] = value.clone()

    def result(self, name: str, weight: object, otherwise: Tensor) -> Any:
        return self.sent.get(name, otherwise)


class Flat(Last):
    def result(self, name: str, weight: object, otherwise: Tensor) -> Any:
        return self.sent[name].flatten()[:2]


class Double(Last):
    def result(self, name: str, weight: object, otherwise: Tensor) -> Any:
        return self.sent[name].double()


class Endless(Last):
    def result(self, name: str, weight: object, otherwise: Tensor) -> Any:
        return self.sent[name] / 0


class Nothing(Last):
    def result(self, name: str, weight: object, otherwise: Tensor) -> Any:
        return None


class Failing(Last):
    def result(self, name: str, weight: object, otherwise: Tensor) -> Any:
        raise KeyError(name)


class EndlessLater(Last):
    """Right on the small tensors of the trial."""

    def result(self, name: str, weight: object, otherwise: Tensor) -> Any:
        return torch.full_like(otherwise, torch.inf) if otherwise.dim() == 4 else otherwise

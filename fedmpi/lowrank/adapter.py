"""LoRA's layer: a linear layer that stays as it is, and two thin factors beside it that are trained.

E. J. Hu et al.: LoRA: Low-Rank Adaptation of Large Language Models, arXiv:2106.09685: W x + s B A x, with A (r, in)
random and B (out, r) zero at the start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.errors import ConfigError
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.svd import truncated_svd

# Rounding to float32 gives a matrix of lower rank singular values of up to this share of its largest one.
_SMALLEST_VALUE = 2.0**-20


class Adapter(nn.Module):
    """W x + bias + scale B A x, with the weight and the bias of the linear layer whose place it takes.

    `holds` names those of its parameters that have no gradient: `a`, or `change` (out, in), which is added to W. It has
    a change only then. Values come from the server.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, r: int, scale: float, holds: Collection[str], device: str) -> None:
        super().__init__()
        self._parameters.update(linear._parameters)
        self._buffers.update(linear._buffers)
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.scale = scale
        self.holds = holds
        self.a = nn.Parameter(torch.zeros(r, linear.in_features, device=device))
        self.b = nn.Parameter(torch.zeros(linear.out_features, r, device=device))
        if "change" in holds:
            self.change = nn.Parameter(torch.zeros(linear.out_features, linear.in_features, device=device))

    @property
    def base(self) -> Tensor:
        """Returns the weight without what is trained, (out, in)."""
        return self.weight + self.change.detach() if "change" in self.holds else self.weight

    def forward(self, x: Tensor) -> Tensor:
        a = self.a.detach() if "a" in self.holds else self.a
        return F.linear(x, self.base, self.bias) + self.scale * F.linear(F.linear(x, a), self.b)

    def merged(self) -> nn.Linear:
        """Returns the linear layer of the same outputs, up to float rounding; its weight is still no parameter."""
        linear = nn.Linear(self.in_features, self.out_features, device="meta")
        linear._parameters = {name: value for name, value in self._parameters.items() if name == "bias"}
        linear._buffers = {**self._buffers, "weight": (self.base + self.scale * self.b @ self.a).detach()}
        return linear


def adapt(net: nn.Module, ranks: Mapping[str, int], scale: float, holds: Collection[str], *, empty: bool) -> nn.Module:
    """Puts an `Adapter` of its rank in place of each of these layers; `empty` ones have no values. Returns the net."""
    for name, r in ranks.items():
        linear = net.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        net.set_submodule(name, Adapter(linear, r, scale, holds, "meta" if empty else "cpu"))
    return net


def frozen_layers(net: nn.Module, patterns: Sequence[str]) -> dict[str, FactorizedLayer]:
    """Returns the linear layers whose weight is not trained and whose name matches one of the patterns (fnmatch).

    Raises `ConfigError` (of `method.targets`, the source of the patterns) for a pattern that no such layer matches.
    """
    linear = {name: part for name, part in net.named_modules() if name and type(part) is nn.Linear}
    frozen = {name: part for name, part in linear.items() if "weight" in part._buffers}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in frozen):
            found = f"frozen are {', '.join(frozen)}" if frozen else "none is frozen; set model.trained to none"
            raise ConfigError("method.targets", f"no frozen linear layer matches '{pattern}': {found}")
    names = [name for name in frozen if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return {name: FactorizedLayer.of(name, frozen[name], "paper", None) for name in names}


def drawn(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Draws an A (r, in) as torch draws the weight of a linear layer: uniform up to 1 / sqrt(in)."""
    bound = shape[1] ** -0.5
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def factors_of(change: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Returns A (r, in) and B (out, r) whose product is the best approximation of `change` (out, in) of the rank r that
    `start` has.

    Rows of A are unit vectors; column i of B has the norm sigma_i. Where sigma_i is zero, row i of A is that of `start`
    (r, in), so that B, which is zero there, has a gradient.
    """
    u, v, sigma = truncated_svd(change.t(), len(start))
    root = sigma[: len(start)].sqrt()
    is_zero = sigma[: len(start)] <= _SMALLEST_VALUE * sigma[0]
    a = torch.where(is_zero[:, None], start.to(u), (u / root).t())
    return a, (v.t() * root).masked_fill(is_zero, 0.0)

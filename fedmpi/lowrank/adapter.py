"""LoRA's layer: a linear layer that stays as it is, and two thin factors beside it that are trained.

E. J. Hu et al.: LoRA: Low-Rank Adaptation of Large Language Models, arXiv:2106.09685: W x + s B A x, with A (r, in)
random and B (out, r) zero at the start.
"""

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.errors import ConfigError
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.svd import truncated_svd
from fedmpi.tensors import frozen_values, keep_attributes

# Rounding to float32 gives a matrix of lower rank singular values of up to this share of its largest one.
_SMALLEST_VALUE = 2.0**-20


class Adapter(nn.Module):
    """W x + bias + scale B A x, with the weight and the bias of the linear layer whose place it takes.

    `holds` names those of its parameters that have no gradient: `a`, or `change` (out, in), which is added to W and
    exists only then. Values come from the server.
    """

    bias: Tensor | None

    def __init__(self, name: str, linear: nn.Module, r: int, scale: float, holds: Collection[str], device: str) -> None:
        super().__init__()
        self.layer_name = name
        self._parameters.update(linear._parameters)
        self._buffers.update(linear._buffers)
        self.layer_type = type(linear)
        self.out_features, self.in_features = _turned(linear.get_buffer("weight"), self.layer_type).shape
        self.scale = scale
        self.holds = holds
        self.a = nn.Parameter(torch.zeros(r, self.in_features, device=device))
        self.b = nn.Parameter(torch.zeros(self.out_features, r, device=device))
        if "change" in holds:
            self.change = nn.Parameter(torch.zeros(self.out_features, self.in_features, device=device))

    @property
    def weight(self) -> Tensor:
        """Raises `ConfigError`: who computes with the frozen weight leaves out what is trained beside it."""
        problem = f"this net reads the weight of {self.layer_name} itself, past an adapter; give patterns without it"
        raise ConfigError("method.targets", problem)

    @property
    def base(self) -> Tensor:
        """Returns the weight without what is trained, (out, in)."""
        frozen = self._buffers["weight"]
        assert frozen is not None
        weight = _turned(frozen, self.layer_type)
        return weight + self.change.detach().to(weight.dtype) if "change" in self.holds else weight

    def forward(self, x: Tensor) -> Tensor:
        a = self.a.detach() if "a" in self.holds else self.a
        frozen = F.linear(x, self.base, self.bias)
        return frozen + self.scale * F.linear(F.linear(x.to(a.dtype), a), self.b).to(frozen.dtype)

    def merged(self) -> nn.Module:
        """Returns the layer of the net's own kind with the same outputs, up to float rounding; its weight is still no
        parameter."""
        weight = (self.base + self.scale * self.b @ self.a).detach().to(self.base.dtype)
        sides = (self.in_features, self.out_features)
        with torch.device("meta"):
            layer = self.layer_type(*(sides if self.layer_type is nn.Linear else sides[::-1]))
        layer._parameters = {name: value for name, value in self._parameters.items() if name == "bias"}
        layer._buffers = {**self._buffers, "weight": _turned(weight, self.layer_type).contiguous()}
        return layer


def _turned(weight: Tensor, kind: type[nn.Module]) -> Tensor:
    """Turns the weight of a linear layer of this kind into (out, in), or back: GPT-2's `Conv1D` has (in, out)."""
    return weight if kind is nn.Linear else weight.t()


def adapt(net: nn.Module, ranks: Mapping[str, int], scale: float, holds: Collection[str], *, empty: bool) -> nn.Module:
    """Puts an `Adapter` of its rank in place of each of these layers; `empty` ones have no values. Returns the net."""
    for name, r in ranks.items():
        layer = net.get_submodule(name)
        adapter = Adapter(name, layer, r, scale, holds, "meta" if empty else "cpu")
        keep_attributes(adapter, layer)
        net.set_submodule(name, adapter)
    return net


def frozen_layers(net: nn.Module, patterns: Sequence[str]) -> dict[str, FactorizedLayer]:
    """Returns the linear layers whose weight is not trained and is theirs alone, and whose name matches a pattern
    (fnmatch). Raises `ConfigError` (of `method.targets`) for a pattern that no such layer matches."""
    parts = {name: part for name, part in net.named_modules() if name and "weight" in part._buffers}
    frozen = {name: part for name, part in parts.items() if not _why_not(net, part)}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in frozen):
            found = f"frozen are {', '.join(frozen)}" if frozen else "none is frozen; set model.trained to none"
            raise ConfigError("method.targets", f"no frozen linear layer matches '{pattern}': {found}")
    layers = {}
    for name, part in frozen.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            outputs, inputs = _turned(part.get_buffer("weight"), type(part)).shape
            layers[name] = FactorizedLayer(name, inputs, outputs, None)
    return layers


def other_layers(net: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Returns the layers with a frozen matrix or kernel that match a pattern and get no adapter, and why, as
    `conv1 (Conv2d)`; embeddings, which look up rows, are left out."""
    found = {}
    for tensor, value in frozen_values(net).items():
        name, _, own = tensor.rpartition(".")
        part = net.get_submodule(name)
        is_layer = value.dim() > 1 and "weight" in own and not isinstance(part, nn.Embedding)
        if is_layer and any(fnmatchcase(name, pattern) for pattern in patterns) and (why := _why_not(net, part)):
            found[name] = f"{name} ({why})"
    return [*found.values()]


def _why_not(net: nn.Module, part: nn.Module) -> str:
    """Returns why a layer with frozen weights gets no adapter, '' if it does."""
    # GPT-2's linear layers in transformers are of the type Conv1D.
    if not (type(part) is nn.Linear or (type(part).__name__ == "Conv1D" and hasattr(part, "nf"))):
        return type(part).__name__
    weight = part.get_buffer("weight")
    is_shared = sum(value is weight for value in frozen_values(net).values()) > 1
    return "its weight is another layer's, too" if is_shared else ""


def drawn(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Draws an A (r, in) as torch draws the weight of a linear layer: uniform up to 1 / sqrt(in)."""
    bound = shape[1] ** -0.5
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def factors_of(change: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Returns A (r, in) and B (out, r) whose product is the best approximation of `change` (out, in) of rank r.

    Rows of A are unit vectors; column i of B has the norm sigma_i. Where sigma_i is zero, row i of A is that of `start`
    (r, in), so that B, which is zero there, has a gradient.
    """
    u, v, sigma = truncated_svd(change.t(), len(start))
    root = sigma[: len(start)].sqrt()
    is_zero = sigma[: len(start)] <= _SMALLEST_VALUE * sigma[0]
    a = torch.where(is_zero[:, None], start.to(u), (u / root).t())
    return a, (v.t() * root).masked_fill(is_zero, 0.0)

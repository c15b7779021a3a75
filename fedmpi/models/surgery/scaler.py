"""HeteroFL's Scaler: a net of width p divides its activations by p while it trains, and never else.

Diao, Ding, Tarokh, HeteroFL, ICLR 2021, arXiv:2010.01264, section 3. It stands directly before every
norm layer; in a net without any, after every conv and linear layer but the last, whose outputs are
the classes. A norm layer takes its statistics of what it normalizes, so dividing before it is the
same as a larger eps: (x/p - mean/p) / sqrt(var/p^2 + eps) = (x - mean) / sqrt(var + p^2 eps). That
costs no pass over the activations.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

Norm = _NormBase | nn.GroupNorm | nn.LayerNorm
WEIGHTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""Layers that multiply by a weight (outputs, inputs, ...)."""


def norm_layers(net: nn.Module) -> list[Norm]:
    """Returns the layers that take statistics of what they normalize."""
    return [part for part in net.modules() if isinstance(part, Norm)]


def scaled_layers(net: nn.Module) -> list[nn.Module]:
    """Returns the convs and linear layers whose outputs are divided: none in a net with norm layers, and never the
    last."""
    layers: list[nn.Module] = [part for part in net.modules() if isinstance(part, (_ConvNd, nn.Linear))]
    return [] if norm_layers(net) else layers[:-1]


def add_scaler(net: nn.Module, rate: float) -> nn.Module:
    """Makes `net` divide by `rate`, in place; returns `net`.

    A pass in train mode without gradients is not training: BatchNorm statistics are re-estimated so,
    for a test that has no Scaler.
    """
    for norm in norm_layers(net) if rate != 1 else ():
        norm.register_forward_pre_hook(partial(_choose_eps, norm.eps, rate))
    for layer in scaled_layers(net) if rate != 1 else ():
        layer.register_forward_hook(partial(_divide, rate))
    return net


def scaler_warning(net: nn.Module, rate: float) -> str:
    """Returns what is to be said of a Scaler in this net: empty where norm layers take it up again."""
    if rate == 1 or norm_layers(net):
        return ""
    if not scaled_layers(net):
        return "this net has no norm layer and only one other, so method.scaler changes nothing"
    return f"without norm layers method.scaler enlarges every layer up to {1 / rate:g}-fold in training"


# Hooks change their argument: a copy of a net has its own layers and the same hooks.


def _choose_eps(eps: float, rate: float, norm: Norm, inputs: tuple[Tensor, ...]) -> None:
    norm.eps = eps * rate**2 if _trains(norm) else eps


def _divide(rate: float, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output / rate if _trains(layer) else output


def _trains(part: nn.Module) -> bool:
    return part.training and torch.is_grad_enabled()

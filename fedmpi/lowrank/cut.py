"""The net that PriSM's Table 1 counts: every layer's inputs and outputs cut to a share, but the stem whole.

Niu et al., arXiv:2208.13141, Tables 1 and 10 (methods.md 5.8, 5.9-6). No public code builds it: a
narrower net of the same kind, except that the first conv keeps all its outputs, the next one reads
all of them, and a residual stream that starts there goes on with its leading channels.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

WEIGHTED = (nn.Conv2d, nn.Linear, _BatchNorm)


class Leading(nn.Module):
    """The leading channels of (B, C, H, W), a view."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.num_channels = num_channels

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.num_channels]


def with_whole_stem(narrow: nn.Module, whole: nn.Module) -> nn.Module:
    """`narrow` (changed) with the stem of `whole`, the same net at full width; values of new tensors are arbitrary.

    For nets that register their layers in the order in which they run: plain stacks of convs, and
    residual nets whose blocks have their shortcut as a module. A net without convs has no stem.
    Raises ValueError for others.
    """
    names = [name for name, module in narrow.named_modules() if isinstance(module, WEIGHTED)]
    if any(isinstance(module, nn.LSTM) for module in narrow.modules()):
        raise ValueError("an LSTM's inputs cannot be cut")
    if not any(isinstance(narrow.get_submodule(name), nn.Conv2d) for name in names):
        return narrow
    stem = _stem(whole, names)
    for name in stem:
        _replace(narrow, name, copy.deepcopy(whole.get_submodule(name)))
    reader = narrow.get_submodule(names[len(stem)])
    if not isinstance(reader, nn.Conv2d):
        raise ValueError(f"its first conv must feed another one, not {reader}")
    _cut_identities(narrow.get_submodule(names[len(stem)].rpartition(".")[0]), reader.in_channels)
    _read_all(reader, whole.get_submodule(stem[0]).out_channels)
    _check_order(narrow, names)
    return narrow


def _stem(whole: nn.Module, names: list[str]) -> list[str]:
    """The first conv, with the norm behind it."""
    first, second, *_ = (whole.get_submodule(name) for name in names)
    if not isinstance(first, nn.Conv2d):
        raise ValueError(f"its first layer must be a conv, not {first}")
    return names[: 2 if isinstance(second, _BatchNorm) else 1]


def _replace(net: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(net.get_submodule(parent), child, module)


def _cut_identities(block: nn.Module, num_channels: int) -> None:
    for name, child in block.named_children():
        if isinstance(child, nn.Identity):
            setattr(block, name, Leading(num_channels))


def _read_all(conv: nn.Conv2d, in_channels: int) -> None:
    conv.in_channels = in_channels
    conv.weight = nn.Parameter(torch.zeros(conv.out_channels, in_channels, *conv.kernel_size, device=conv.weight.device))


def _check_order(net: nn.Module, names: list[str]) -> None:
    """Where norms do not follow the convs that they normalize, neither can what the stem feeds be found by order."""
    channels = 0
    for name in names:
        module = net.get_submodule(name)
        if isinstance(module, _BatchNorm) and module.num_features != channels:
            raise ValueError(f"'{name}' does not normalize the layer before it")
        channels = module.out_channels if isinstance(module, nn.Conv2d) else channels

"""The net that PriSM's Table 1 counts: every layer's inputs and outputs cut to a share, but the stem whole.

Niu et al., arXiv:2208.13141, Tables 1 and 10. No public code builds it: a
narrower net of the same kind, except that the first conv keeps all its outputs, the next one reads
all of them, and a residual stream that starts there continues its leading channels.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

WEIGHTED = (nn.Conv2d, nn.Linear, _BatchNorm, nn.GroupNorm)


class Leading(nn.Module):
    """The leading channels of (B, C, H, W), a view."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.num_channels = num_channels

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.num_channels]


def with_whole_stem(narrow: nn.Module, whole: nn.Module) -> nn.Module:
    """Gives `narrow` the stem of `whole`, the same net at full width; values of new tensors are arbitrary.

    For nets that register their layers in the order in which they run: plain stacks of convs, and
    residual nets whose blocks have an identity as a module. A net without convs has no stem.
    Raises ValueError for others.
    """
    if any(isinstance(module, nn.LSTM) for module in narrow.modules()):
        raise ValueError("an LSTM's inputs cannot be cut")
    layers = [(name, part) for name, part in narrow.named_modules() if isinstance(part, WEIGHTED)]
    if not any(isinstance(part, nn.Conv2d) for _, part in layers):
        return narrow
    match [part for _, part in layers[:3]]:
        case [nn.Conv2d(), nn.Conv2d() as reader, *_]:
            stem = layers[:1]
        case [nn.Conv2d(), _BatchNorm() | nn.GroupNorm(), nn.Conv2d() as reader]:
            stem = layers[:2]
        case parts:
            kinds = ", ".join(type(part).__name__ for part in parts)
            raise ValueError(f"it must begin with two convs, not with {kinds}")
    # First, as it may refuse: then nothing of `narrow` has changed.
    _cut_identity(narrow.get_submodule(layers[len(stem)][0].rpartition(".")[0]), reader.in_channels)
    for name, _ in stem:
        narrow.set_submodule(name, copy.deepcopy(whole.get_submodule(name)))
    reader.in_channels = len(whole.get_submodule(layers[0][0]).get_parameter("weight"))
    shape = (reader.out_channels, reader.in_channels, *reader.kernel_size)
    reader.weight = nn.Parameter(torch.zeros(shape, device=reader.weight.device))
    return narrow


def _cut_identity(block: nn.Module, num_channels: int) -> None:
    """Cuts what bypasses the first layer that reads the stem, which has fewer channels."""
    identities = [name for name, child in block.named_children() if isinstance(child, nn.Identity)]
    if not (identities or isinstance(block, nn.Sequential)):
        raise ValueError(f"a {type(block).__name__} has no identity that could be cut")
    for name in identities:
        setattr(block, name, Leading(num_channels))

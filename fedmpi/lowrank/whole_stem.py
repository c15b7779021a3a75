"""The net that PriSM's Table 1 counts: every layer's inputs and outputs cut to a share, but the stem whole.

Niu et al., arXiv:2208.13141, Tables 1 and 10. No public code builds it: a
narrower net of the same kind, except that the first conv keeps all its outputs, the next one reads
all of them, and a residual stream that starts there continues its leading channels.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

NORMS = (_BatchNorm, nn.GroupNorm)
WEIGHTED = (nn.Conv2d, nn.Linear, *NORMS)


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
    names = [name for name, module in narrow.named_modules() if isinstance(module, WEIGHTED)]
    if any(isinstance(module, nn.LSTM) for module in narrow.modules()):
        raise ValueError("an LSTM's inputs cannot be cut")
    if not any(isinstance(narrow.get_submodule(name), nn.Conv2d) for name in names):
        return narrow
    stem = _stem(whole, names)
    reader = narrow.get_submodule(names[len(stem)])
    first = whole.get_submodule(stem[0])
    assert isinstance(reader, nn.Conv2d) and isinstance(first, nn.Conv2d)
    # First, as it may refuse: then nothing of `narrow` has changed.
    _cut_identity(narrow.get_submodule(names[len(stem)].rpartition(".")[0]), reader.in_channels)
    for name in stem:
        narrow.set_submodule(name, copy.deepcopy(whole.get_submodule(name)))
    _read_all(reader, first.out_channels)
    return narrow


def _stem(whole: nn.Module, names: list[str]) -> list[str]:
    """Returns the first conv, with the norm behind it; another conv must follow."""
    kinds = [type(whole.get_submodule(name)) for name in names[:3]]
    stem = names[: 2 if any(issubclass(kind, NORMS) for kind in kinds[1:2]) else 1]
    if kinds[0] is not nn.Conv2d or kinds[len(stem) : len(stem) + 1] != [nn.Conv2d]:
        raise ValueError(f"it must begin with two convs, not with {', '.join(kind.__name__ for kind in kinds)}")
    return stem


def _cut_identity(block: nn.Module, num_channels: int) -> None:
    """Cuts what bypasses the first layer that reads the stem, which has fewer channels."""
    identities = [name for name, child in block.named_children() if isinstance(child, nn.Identity)]
    if not (identities or isinstance(block, nn.Sequential)):
        raise ValueError(f"a {type(block).__name__} has no identity that could be cut")
    for name in identities:
        setattr(block, name, Leading(num_channels))


def _read_all(conv: nn.Conv2d, in_channels: int) -> None:
    shape = (conv.out_channels, in_channels, *conv.kernel_size)
    conv.in_channels = in_channels
    conv.weight = nn.Parameter(torch.zeros(shape, device=conv.weight.device))

"""BatchNorm at test time.

Nets train with batch statistics and keep none. For a test with statistics ("sBN",
arXiv:2010.01264), the training data pass once, in train mode and without gradients, and each
layer's statistics are the plain mean over the batches of that batch's mean and unbiased variance:
what torch computes with momentum=None. The mean is an exact sum, so batches may be spread over ranks.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """Returns the BatchNorm layers of a net, in order."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm)]


def num_statistics(module: nn.Module) -> int:
    """Returns how many numbers a net's statistics are: a mean and a variance per channel."""
    return 2 * sum(layer.num_features for layer in batch_norms(module))


@contextmanager
def collecting(module: nn.Module) -> Iterator[None]:
    """Lets every forward pass leave its batch's statistics in the layers (momentum 1 keeps nothing older)."""
    layers = batch_norms(module)
    momenta = [layer.momentum for layer in layers]
    device = next(module.parameters()).device
    for layer in layers:
        layer.running_mean = torch.zeros(layer.num_features, device=device)
        layer.running_var = torch.zeros(layer.num_features, device=device)
        layer.num_batches_tracked = torch.zeros((), dtype=torch.int64, device=device)  # SyncBatchNorm insists
        layer.momentum = 1.0
        layer.track_running_stats = True
    module.train()
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
            layer.momentum = momentum
            layer.track_running_stats = False


def collected(module: nn.Module) -> Tensor:
    """Returns the statistics of the last forward pass, shape (num_statistics,)."""
    parts = [part for layer in batch_norms(module) for part in (layer.running_mean, layer.running_var)]
    return torch.cat([part for part in parts if part is not None])


@contextmanager
def using(module: nn.Module, statistics: Tensor | None) -> Iterator[None]:
    """Puts the net into eval mode, to normalize with `statistics`; None means with those of each batch."""
    layers = batch_norms(module)
    module.eval()
    if statistics is not None:
        parts = iter(statistics.split([n for layer in layers for n in (layer.num_features,) * 2]))
        for layer in layers:
            layer.running_mean = next(parts)
            layer.running_var = next(parts)
    try:
        yield
    finally:
        for layer in layers:
            layer.running_mean = layer.running_var = None

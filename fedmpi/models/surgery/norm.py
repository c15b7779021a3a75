"""Norm layers without running statistics ("BN-batch").

Every net normalizes with the statistics of its inputs (BatchNorm: of the batch), in training and in
evaluation; where statistics over the whole training set are wanted, evaluation re-estimates them.
A running mean would be state that no method sends: the next client on the same rank would get it.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase


def use_batch_statistics(net: nn.Module) -> nn.Module:
    """Takes the running statistics out of every BatchNorm and InstanceNorm of `net`, in place; returns `net`."""
    for _, layer in with_running_statistics(net):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return net


def with_running_statistics(net: nn.Module) -> list[tuple[str, _NormBase]]:
    """The norm layers that keep running statistics, with their dotted names."""
    layers = [(name, part) for name, part in net.named_modules() if isinstance(part, _NormBase)]
    return [(name, part) for name, part in layers if part.track_running_stats]

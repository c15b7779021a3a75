"""BatchNorm without running statistics ("BN-batch").

Every net of fedmpi normalises with the statistics of the batch at hand, in training and in
evaluation; where statistics over the whole training set are wanted, evaluation re-estimates them.
A running mean kept by a client would be state that no method sends.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def use_batch_statistics(net: nn.Module) -> nn.Module:
    """Take the running statistics out of every BatchNorm of `net`, in place; returns `net`."""
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return net

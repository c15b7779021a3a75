"""A pruned client's net without its pruned rows and columns: `--cut`."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from fedmpi.errors import ConfigError
from fedmpi.export.trained import TrainedNet
from fedmpi.models.surgery.cutting import cut


def cut_net(trained: TrainedNet) -> TrainedNet:
    """The same answers up to float rounding, from smaller layers. Raises ConfigError for a net that is not pruned."""
    if trained.masks is None:
        raise ConfigError("--cut", f"{trained.name} is not pruned; only the nets of hermes's clients are (--client=N)")
    small = cut(trained.net, trained.masks).requires_grad_(False)

    def fresh() -> nn.Module:
        net = copy.deepcopy(small)
        with torch.no_grad():
            for value in net.state_dict().values():
                value.zero_()
        return net

    return replace(trained, label=f"{trained.label}-cut", net=small, fresh=fresh, is_cut=True)

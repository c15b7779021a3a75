"""An experiment, no feature: FedHM whose low-rank clients also train the prefixes of their factors.

A client of rank r takes turns from step to step: it trains its own net, then the net of the next smaller rank, down to
the smallest one, and begins again. In the step of a smaller rank the entries beyond it are zero in the forward pass,
and have no gradient of the loss; decay and momentum go on. Dense clients train as ever. Costs are counted as those of
full steps. The study beside this file asks whether the smallest tier gains by it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedmpi.learning.flat import FlatNet
from fedmpi.methods.fedhm_delta import FedHMDelta, FedHMDeltaOptions
from fedmpi.methods.values import Client, MethodContext


class NestedOptions(FedHMDeltaOptions):
    name: str = "nested_rank"


class NestedFedHM(FedHMDelta):
    Options = NestedOptions

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        pairs = [layer.factor_names for layer in self.layers.values()]
        self._beyond = {
            tier.index: {u: layer.r(tier.capacity) for layer, (u, _) in zip(self.layers.values(), pairs, strict=True)}
            for tier in self.tiers
        }

    def backward(self, net: FlatNet, inputs: Tensor, targets: Tensor, loss: Any, client: Client) -> Tensor:
        own = client.task.tier
        if self._is_dense(own):
            return super().backward(net, inputs, targets, loss, client)
        step = client.scratch.setdefault("nested.step", torch.zeros((), dtype=torch.int64))
        tier = own + int(step) % (len(self.tiers) - own)
        step += 1
        kept = {name: net.params[name][r:].clone() for name, r in self._beyond[tier].items()}
        self._fill(net.params, tier, dict.fromkeys(kept, 0.0))
        value = super().backward(net, inputs, targets, loss, client)
        self._fill(net.params, tier, kept)
        self._fill(net.grads, tier, dict.fromkeys(kept, 0.0))
        return value

    def _fill(self, tensors: Any, tier: int, values: Any) -> None:
        """Sets the rows of each `u` beyond the rank of a tier; without them those of `v` give nothing and get none."""
        with torch.no_grad():
            for name, r in self._beyond[tier].items():
                part = tensors[name][r:]
                part.fill_(values[name]) if isinstance(values[name], float) else part.copy_(values[name])

"""The base of methods whose clients train two factors in place of a layer's weight: FedHM, PriSM and its baseline.

Frobenius decay (`FactorizedLayer.add_decay`) takes the place of weight decay on the factors. An LSTM's gates are layers
of their own, each factorized and sent like any other.
"""

from collections.abc import Container
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from fedmpi.learning.flat import FlatNet
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.modules import open_lstms
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.methods.fedopt import ServerMethod
from fedmpi.methods.values import Client, MethodContext, Training


class FactorMethod(ServerMethod):
    """Trains factors of the layers that `rule` names, `decay` times half the squared norm of their product in the
    loss."""

    def __init__(self, context: MethodContext, rule: Rule, decay: float | Literal["auto"]) -> None:
        def make(*width: Any, empty: bool = False) -> nn.Module:
            return open_lstms(context.make(*width, empty=empty))

        super().__init__(replace(context, make=make))
        self.factorized = plan_layers(make(empty=True), rule)
        self.own_decay = [name for layer in self.factorized for name in layer.factor_names]
        self.lambda_ = context.train.weight_decay if decay == "auto" else decay

    def sizes(self, layer: FactorizedLayer, ratio: float) -> tuple[int, int]:
        """Returns the rank of a layer in the net of this capacity, and of how many of its outputs the net has rows."""
        return layer.r(ratio), layer.out_features

    def ranks(self, ratio: float) -> dict[str, int]:
        """Returns the rank of each layer in the net of this capacity."""
        return {layer.name: self.sizes(layer, ratio)[0] for layer in self.factorized}

    def _growth(self, ratio: float) -> int:
        return sum(layer.growth(*self.sizes(layer, ratio)) for layer in self.factorized)

    def warnings(self) -> tuple[str, ...]:
        """Warns of each ratio below 1 whose net has more parameters than the dense one, and says what helps."""
        smaller = next((percent / 100 for percent in range(99, 0, -1) if self._growth(percent / 100) < 0), None)
        advice = "no ratio makes it smaller" if smaller is None else f"{smaller:g} or less makes it smaller"
        whole = sum(parameter.numel() for parameter in self.context.make(empty=True).parameters())
        lines = []
        for ratio in self.options.tiers:
            if ratio < 1 and self._growth(ratio) > 0:
                params = f"{whole + self._growth(ratio):,} parameters, the dense one {whole:,}"
                lines.append(f"the net of method.{self.options.capacity} {ratio:g} has {params}; {advice}")
        return tuple(lines)

    def _layers_in(self, names: Container[str]) -> list[FactorizedLayer]:
        """Returns the layers whose factors are among these tensors: none in a dense net."""
        return [layer for layer in self.factorized if layer.factor_names[0] in names]

    def count_steps(self, tier: int, num_examples: float, share: float) -> Training:
        """Counts the Frobenius decay."""
        specs = self.tier_specs[tier]
        macs = sum(layer.decay_macs(specs) for layer in self._layers_in(specs))
        return replace(super().count_steps(tier, num_examples, share), macs_per_update=macs)

    def after_backward(self, net: FlatNet, client: Client) -> None:
        """Adds the gradient of lambda/2 |U V|_F^2 over the ranks and rows that the client holds."""
        for layer in self._layers_in(net.params):
            layer.add_decay(net.params, net.grads, self.lambda_)

"""A method of the tests' own, made of what neither FedAvg nor FedHM uses, on the protocol as it stands.

Toy is no paper's method. It takes one thing from each of several, so that a change of the engine which
would break them is noticed before they are written:

- clients train the leading channels of every layer, as many as their capacity says, and each entry is
  averaged over those who hold it (HeteroFL, arXiv:2010.01264);
- a round has two phases, one for the widest tier and one for the others (Split-Mix, CEFO);
- the classifier's bias stays with its client and never reaches the server (LG-FedAvg, arXiv:2001.01523);
- uploads are rounded to bfloat16, and a client adds next time what rounding left out (error feedback,
  arXiv:1809.07599);
- the server has momentum, a state beside the averaged tensors (FedAvgM, arXiv:1909.06335);
- a proximal term pulls towards what was published (FedProx, arXiv:1812.06127);
- clients are weighted by their examples.
"""

import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fedmpi.config.schema import NotNegative, Shares
from fedmpi.exactsum import Region
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, Contributions, MethodOptions, Phase, Traits
from fedmpi.tensors import Params, Spec

LOCAL = "fc.bias"
"""The tensor that never reaches the server's sums."""


class ToyOptions(MethodOptions):
    """Options of `toy`."""

    name: str = "toy"
    """The tests' own method."""
    widths: Shares = (1.0, 0.5, 0.25)
    """Share of every layer's channels that each tier trains."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """The server's momentum."""
    proximal: NotNegative = 0.01
    """Weight of mu/2 |theta - published|^2."""

    @property
    def tiers(self) -> tuple[float, ...]:
        return self.widths


class Toy(Method):
    """Leading channels, two phases, client memory, bfloat16 uploads, server momentum."""

    Options = ToyOptions
    options: ToyOptions
    traits = Traits(keeps_memory=True)

    def phases(self, round_number: int) -> tuple[Phase, ...]:
        narrow = frozenset(range(1, len(self.tiers)))
        return Phase("wide", frozenset({0}), 2), Phase("narrow", narrow)

    # Server half. Its state: the averaged tensors, then those that only the server or the clients touch.

    def state_specs(self) -> dict[str, Spec]:
        return {name: spec for name, spec in self._dense_specs.items() if name != LOCAL}

    def initial_state(self) -> Params:
        whole = super().initial_state()
        velocity = {f"velocity.{name}": torch.zeros_like(whole[name]) for name in self.state_specs()}
        phases_done = {"phases_done": torch.zeros((), dtype=torch.int64)}
        return velocity | phases_done | whole

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        return self._dense_specs

    def client_weight(self, task: Task) -> float:
        return float(task.num_examples)

    def regions(self, client: Client) -> Mapping[str, Region]:
        return {
            name: tuple(slice(length) for length in self._net_specs[client.task.tier][name].shape)
            for name, spec in self.state_specs().items()
            if self._net_specs[client.task.tier][name].shape != spec.shape
        }

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        new = {**state, "phases_done": state["phases_done"] + 1}
        for name, mean in means.items():
            velocity = self.options.momentum * state[f"velocity.{name}"] + (mean - state[name])
            new |= {f"velocity.{name}": velocity, name: state[name] + velocity}
        return new

    def publish(self, state: Params, nets: Collection[int], out: Params) -> None:
        for name, target in out.items():
            target.copy_(state[name])

    # Client half.

    def net(self, number: int, *, empty: bool = False) -> nn.Module:
        return narrowed(self.context.make(empty=empty), self.tiers[number].rank_ratio)

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        for name, target in out.items():
            target.copy_(leading(published[name], target.shape))
        if client is not None and client.memory is not None:
            out[LOCAL].copy_(client.memory[LOCAL])

    def after_backward(self, net: FlatNet, client: Client) -> None:
        for name, value in net.params.items():
            pull = value - leading(client.published[name], value.shape)
            net.grads[name].add_(pull, alpha=self.options.proximal)

    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        specs = self._net_specs[tier]
        return {name: Spec(specs[name].shape, torch.bfloat16, specs[name].channels_last) for name in self.state_specs()}

    def upload(self, net: FlatNet, client: Client) -> Params:
        return {name: wanted.to(torch.bfloat16) for name, wanted in self._wanted(net, client)}

    def remember(self, net: FlatNet, client: Client) -> Params:
        residuals = {f"residual.{n}": wanted - wanted.to(torch.bfloat16) for n, wanted in self._wanted(net, client)}
        return {LOCAL: net.params[LOCAL].clone()} | residuals

    def _wanted(self, net: FlatNet, client: Client) -> Iterator[tuple[str, Tensor]]:
        """What the client would send if numbers were free; a residual of another tier's shape is forgotten."""
        for name in self.state_specs():
            residual = (client.memory or {}).get(f"residual.{name}")
            same_shape = residual is not None and residual.shape == net.params[name].shape
            yield name, net.params[name] + residual if same_shape else net.params[name]


def leading(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The leading entries along every dimension, a view."""
    return tensor[tuple(slice(length) for length in shape)]


def narrowed(net: nn.Module, width: float) -> nn.Module:
    """A copy of a CIFAR ResNet whose layers have their leading channels only; inputs and classes stay."""
    net = copy.deepcopy(net)
    for name, part in net.named_modules():
        if isinstance(part, nn.Conv2d):
            part.in_channels = part.in_channels if name == "conv1" else kept(part.in_channels, width)
            part.out_channels = kept(part.out_channels, width)
            _cut(part, "weight", (part.out_channels, part.in_channels))
        elif isinstance(part, nn.BatchNorm2d):
            part.num_features = kept(part.num_features, width)
            _cut(part, "weight", (part.num_features,))
            _cut(part, "bias", (part.num_features,))
        elif isinstance(part, nn.Linear):
            part.in_features = kept(part.in_features, width)
            _cut(part, "weight", (part.out_features, part.in_features))
    return net


def kept(channels: int, width: float) -> int:
    """How many of `channels` a tier of this width has."""
    return max(1, round(channels * width))


def _cut(part: nn.Module, name: str, shape: tuple[int, ...]) -> None:
    setattr(part, name, nn.Parameter(leading(getattr(part, name).detach(), shape).clone()))

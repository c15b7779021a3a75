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

from collections.abc import Collection, Iterator
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedmpi.config.fields import NotNegative, Shares
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.methods.protocol import copy_into
from fedmpi.methods.values import Client, Contributions, MethodOptions, Phase, Traits
from fedmpi.methods.widths import WidthMethod
from fedmpi.tensors import Params, Spec, moved

LOCAL = "fc.bias"
"""The tensor that never reaches the server's sums."""


class ToyOptions(MethodOptions):
    """Options of `toy`."""

    capacity: ClassVar[str] = "widths"
    name: str = "toy"
    """The tests' own method."""
    widths: Shares = (1.0, 0.5, 0.25)
    """Share of every layer's channels that each tier trains."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """The server's momentum."""
    proximal: NotNegative = 0.01
    """Weight of mu/2 |theta - published|^2."""
    weighting: str = "samples"


class Toy(WidthMethod):
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

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        new = {**state, "phases_done": state["phases_done"] + 1}
        for name, mean in means.items():
            velocity = self.options.momentum * state[f"velocity.{name}"] + (mean - state[name])
            new |= {f"velocity.{name}": velocity, name: state[name] + velocity}
        return new

    # Client half.

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        super().narrow(published, number, out, client)
        if client is not None and client.memory is not None:
            copy_into({LOCAL: out[LOCAL]}, client.memory)

    def after_backward(self, net: FlatNet, client: Client) -> None:
        for name, part in self._parts[client.task.tier].items():
            net.grads[name].add_(net.params[name] - part.of(client.published[name]), alpha=self.options.proximal)

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
        memory = moved(client.memory or {}, net.device)
        for name in self.state_specs():
            residual = memory.get(f"residual.{name}")
            same_shape = residual is not None and residual.shape == net.params[name].shape
            yield name, net.params[name] + residual if same_shape else net.params[name]

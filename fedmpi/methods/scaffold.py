"""SCAFFOLD: control variates correct every local step for the drift between clients.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh: SCAFFOLD: Stochastic
Controlled Averaging for Federated Learning, ICML 2020, arXiv:1910.06378, Algorithm 1. A client
starts at y = x, steps along g(y) - c_i + c, and sends y - x and c_i^+ - c_i; the server takes
x <- x + eta_g mean(y_i - x) and c <- c + |S| / N mean(c_i^+ - c_i). Here eta_g = 1, as in the paper's
experiments, and c_i^+ is that of option II, which these take, too: the mean gradient of the local steps.

Server state: the model x, and its control variate c as `control..<name>`. A client remembers c_i.
All of them start at zero, so c is the mean of all N clients' c_i at any time.

Differences from the paper:
- Clients send y_i in place of y_i - x: the same bytes, and the mean needs no rounding.
- Local steps are the SGD of `train`, the correction added to the gradient before weight decay and
  momentum. c_i^+, c_i - c + (x - y_i) / (K lr), is the mean gradient of the K steps for plain SGD
  only: under momentum it overstates it, up to 1 / (1 - momentum) times, and on digits momentum 0.9
  diverges in 5 rounds. Weight decay counts as part of the gradient, as if it were in the loss.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from fedmpi.config.schema import Config
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, TrainOutcome
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import (
    Client,
    ClientLoad,
    Contributions,
    Costs,
    LocalWork,
    MethodOptions,
    Training,
    counted_once,
)
from fedmpi.tensors import Params, Spec, to_device

# B of a control variate, which is a gradient: parameters are no measure of it. Sums keep 2^-38 with 10 clients.
LARGEST_CONTROL = 2.0**20


class ScaffoldOptions(MethodOptions):
    uploads_nets: ClassVar[bool] = False
    name: str = "scaffold"
    """Control variates against client drift (Karimireddy et al. 2020)."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        yield from self.only_sgd(config, "scaffold corrects the gradients of SGD's steps")


class Scaffold(Method):
    """y_i by corrected SGD; x and c by the means of what clients bring."""

    Options = ScaffoldOptions
    options: ScaffoldOptions

    def costs(self, turn: ClientLoad) -> Costs:
        """Counts the model and the control variate both ways."""
        costs = super().costs(turn)
        return replace(costs, down_bytes=costs.up_bytes)

    def warnings(self) -> tuple[str, ...]:
        momentum = self.context.train.momentum
        if momentum == 0:
            return ()
        problem = f"scaffold corrects the steps of plain SGD; with train.momentum={momentum:g} its corrections add up"
        return (f"{problem}, and training may diverge: set train.momentum=0, as the config scaffold_digits does",)

    # Server half.

    def state_specs(self) -> dict[str, Spec]:
        return self.model_specs | self._control_specs()

    def _control_specs(self) -> dict[str, Spec]:
        return {_control(name): spec for name, spec in self.model_specs.items()}

    def initial_state(self) -> Params:
        model = super().initial_state()
        return model | {_control(name): value.new_zeros(value.shape) for name, value in model.items()}

    def bound(self, name: str, magnitude: float) -> float:
        return super().bound(name, magnitude) if name in self.model_specs else LARGEST_CONTROL

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Runs Algorithm 1, lines 16 and 17."""
        share = len(contributions.tasks) / self.context.clients.count
        new = dict(state)
        for name in self.model_specs:
            new[name] = means[name]
            new[_control(name)] = state[_control(name)].add(means[_control(name)], alpha=share)
        return new

    # Client half.

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Lines 7 to 12; leaves in `scratch` what `_change` makes the new control variate of."""
        scratch = client.scratch
        published = client.published
        own = self._own_control(trainer.net, client)
        scratch |= {f"correction.{name}": published[_control(name)] - value for name, value in own.items()}
        outcome = super().train(trainer, client, work)
        if num_taken := outcome.steps - outcome.left_out:
            scratch["path"] = torch.tensor(num_taken * work.lr, dtype=torch.float64)
        return outcome

    def _own_control(self, net: FlatNet, client: Client) -> Params:
        """Returns c_i, on the net's device; zeros until the client has taken part."""
        if client.memory is None:
            return {name: value.new_zeros(value.shape) for name, value in net.params.items()}
        memory = to_device(client.memory, net.device)
        return {name: memory[_control(name)] for name in net.params}

    @counted_once
    def count_training(self, turn: ClientLoad) -> Training:
        """Counts x, c, c_i and the correction: three numbers for each parameter."""
        return replace(super().count_training(turn), values_per_update=3 * self._num_params, copies=3)

    def after_backward(self, net: FlatNet, client: Client) -> None:
        """Makes the gradient g(y) - c_i + c."""
        corrections = [client.scratch[f"correction.{name}"] for name in net.grads]
        torch._foreach_add_(list(net.grads.values()), corrections)

    def _change(self, name: str, value: Tensor, client: Client) -> Tensor:
        """Returns c_i^+ - c_i; zeros for a client that took no step, or that diverged.

        How many steps of a path that was cut short are left is not known.
        """
        if client.is_restored or "path" not in client.scratch:
            return value.new_zeros(value.shape)
        path = float(client.scratch["path"])
        return (client.published[name] - value) / path - client.published[_control(name)]

    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        return self.tier_specs[tier] | self._control_specs()

    def upload(self, net: FlatNet, client: Client) -> Params:
        changes = {_control(name): self._change(name, value, client) for name, value in net.params.items()}
        return net.params | changes

    def remember(self, net: FlatNet, client: Client) -> Params:
        own = self._own_control(net, client)
        return {_control(name): own[name] + self._change(name, value, client) for name, value in net.params.items()}


def _control(name: str) -> str:
    return f"control..{name}"

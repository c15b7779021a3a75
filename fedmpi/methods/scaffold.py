"""SCAFFOLD: control variates correct every local step for the drift between clients.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh: SCAFFOLD: Stochastic
Controlled Averaging for Federated Learning, ICML 2020, arXiv:1910.06378, Algorithm 1. A client
starts at y = x, steps along g(y) - c_i + c, and sends y - x and c_i^+ - c_i; the server takes
x <- x + eta_g mean(y_i - x) and c <- c + |S| / N mean(c_i^+ - c_i).

Server state: the model x, and its control variate c as `control.<name>`. A client remembers c_i.
All of them start at zero, so c is the mean of all N clients' c_i at any time.

Differences from the paper:
- Clients send y_i in place of y_i - x: the same bytes, and with eta_g = 1 the mean needs no rounding.
- Local steps are the SGD of `train`, the correction added to the gradient before weight decay and
  momentum. c_i^+ of option II, c_i - c + (x - y_i) / (K lr), is the mean gradient of the K steps for
  plain SGD only: under momentum it overstates it, up to 1 / (1 - momentum) times, and on digits
  momentum 0.9 diverges in 5 rounds. Weight decay counts as part of the gradient there, as if it
  were in the loss; in option I it does not. Option I with that momentum does not diverge there, but
  has 42 % after 6 rounds, where without momentum there are 90 %.
- Option I, the gradient at x, is taken in one more pass over the client's data, in batches as in training. Examples
  of batches that fp16 leaves out do not count; where it leaves out all, c_i stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedmpi.config.fields import Positive
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, TrainOutcome
from fedmpi.methods.protocol import Loss, Method, gradients
from fedmpi.methods.values import Client, ClientLoad, Contributions, Costs, LocalWork, MethodOptions, Traits
from fedmpi.tensors import Params, Spec, to_device

# B of a control variate, which is a gradient: parameters are no measure of it. Sums keep 2^-38 with 10 clients.
LARGEST_CONTROL = 2.0**20


class ScaffoldOptions(MethodOptions):
    """Options of `scaffold`."""

    name: str = "scaffold"
    """Control variates against client drift (Karimireddy et al. 2020)."""
    option: Literal["I", "II"] = "II"
    """How a client renews its control variate: `I` by the gradient at the published model (one more pass over its
    data), `II` by the mean gradient of its local steps (free).
    """
    server_lr: Positive = 1.0
    """Eta_g: how far the server goes towards the mean of the clients' models."""

    @property
    def needs_sgd(self) -> str:
        return "scaffold corrects the gradients of SGD's steps"


class Scaffold(Method):
    """y_i by corrected SGD; x and c by the means of what clients bring."""

    Options = ScaffoldOptions
    options: ScaffoldOptions
    traits = Traits(keeps_memory=True)

    def costs(self, turn: ClientLoad) -> Costs:
        """Counts the model and the control variate both ways; option I takes one more pass."""
        costs = super().costs(turn)
        one_pass = turn.num_examples if self.options.option == "I" else 0
        return replace(costs, down_bytes=costs.up_bytes, examples=costs.examples + one_pass)

    def warnings(self) -> tuple[str, ...]:
        momentum = self.context.train.momentum
        if momentum == 0:
            return ()
        problem = f"scaffold corrects the steps of plain SGD; with train.momentum={momentum:g} its corrections add up"
        return (f"{problem}, and training may diverge: set train.momentum=0, as the config scaffold_digits does",)

    # Server half.

    def state_specs(self) -> dict[str, Spec]:
        return self._dense_specs | self._control_specs()

    def _control_specs(self) -> dict[str, Spec]:
        return {_control(name): spec for name, spec in self._dense_specs.items()}

    def initial_state(self) -> Params:
        model = super().initial_state()
        return model | {_control(name): value.new_zeros(value.shape) for name, value in model.items()}

    def bound(self, name: str, magnitude: float) -> float:
        return super().bound(name, magnitude) if name in self._dense_specs else LARGEST_CONTROL

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Runs Algorithm 1, lines 16 and 17; lerp gives the mean itself where eta_g is 1."""
        share = len(contributions.tasks) / self.context.clients.count
        new = dict(state)
        for name in self._dense_specs:
            new[name] = state[name].lerp(means[name], self.options.server_lr)
            new[_control(name)] = state[_control(name)].add(means[_control(name)], alpha=share)
        return new

    # Client half.

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Lines 7 to 12; leaves in `scratch` what `_change` makes the new control variate of."""
        scratch = client.scratch
        published = client.published
        at_x = None
        if self.options.option == "I":
            gradient, at_x = _gradient(trainer, client, work)
            scratch |= {f"gradient.{name}": value for name, value in gradient.items()}
        own = self._own_control(trainer.net, client)
        scratch |= {f"correction.{name}": published[_control(name)] - value for name, value in own.items()}
        outcome = super().train(trainer, client, work)
        num_taken, *at_x_taken = (one.steps - one.left_out for one in (outcome, at_x) if one)
        if num_taken and all(at_x_taken):
            scratch["path"] = torch.tensor(num_taken * work.lr, dtype=torch.float64)
        # Told with the others. As steps, too, because a client whose steps were all left out has not trained.
        more = at_x.left_out if at_x else 0
        return replace(outcome, steps=outcome.steps + more, left_out=outcome.left_out + more)

    def _own_control(self, net: FlatNet, client: Client) -> Params:
        """Returns c_i, on the net's device; zeros until the client has taken part."""
        if client.memory is None:
            return {name: value.new_zeros(value.shape) for name, value in net.params.items()}
        memory = to_device(client.memory, net.device)
        return {name: memory[_control(name)] for name in net.params}

    def after_backward(self, net: FlatNet, client: Client) -> None:
        """Makes the gradient g(y) - c_i + c."""
        corrections = [client.scratch[f"correction.{name}"] for name in net.grads]
        torch._foreach_add_(list(net.grads.values()), corrections)

    def _change(self, name: str, value: Tensor, client: Client) -> Tensor:
        """Returns c_i^+ - c_i; zeros for a client that took no step (option I: or none at x), or that diverged.

        How many steps of a path that was cut short are left is not known.
        """
        if client.is_restored or "path" not in client.scratch:
            return value.new_zeros(value.shape)
        control = client.published[_control(name)]
        if self.options.option == "I":
            return client.scratch[f"gradient.{name}"] - (control - client.scratch[f"correction.{name}"])
        return (client.published[name] - value) / float(client.scratch["path"]) - control

    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        return self._net_specs[tier] | self._control_specs()

    def upload(self, net: FlatNet, client: Client) -> Params:
        changes = {_control(name): self._change(name, value, client) for name, value in net.params.items()}
        return net.params | changes

    def remember(self, net: FlatNet, client: Client) -> Params:
        own = self._own_control(net, client)
        return {_control(name): own[name] + self._change(name, value, client) for name, value in net.params.items()}


def _control(name: str) -> str:
    return f"control.{name}"


def _gradient(trainer: LocalTrainer, client: Client, work: LocalWork) -> tuple[Params, TrainOutcome]:
    """Returns the gradient of the mean loss, over those of the client's batches that fp16 does not leave out, at the
    parameters that the net has; and how it went: an epoch of steps of length 0."""
    is_scaled = trainer.net.scale is not None
    total = {name: torch.zeros_like(value) for name, value in trainer.net.grads.items()}
    sizes = [0]
    num_taken = torch.zeros((), device=trainer.net.device)

    def unit(size: int) -> int:
        # In fp16 the loss is multiplied by at most 1, so that it overflows no earlier than in training, and the
        # gradient by the rest: a power of two, which rounds nothing.
        return 1 << (size - 1).bit_length() if is_scaled else 1

    def backward(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        sizes.append(len(targets))
        value = loss(net.module(inputs), targets)
        gradients(value * (sizes[-1] / unit(sizes[-1])))
        return value.detach()

    def add_up(net: FlatNet) -> None:
        torch._foreach_add_(list(total.values()), list(net.grads.values()), alpha=unit(sizes[-1]))
        if net.scale is not None:
            num_taken.add_(sizes[-1] * (1 - net.scale.left_out))

    draws = work.data.draws(client.examples, 1, client.generator("control"))
    outcome = trainer.run(draws, 0.0, work.loss, backward, add_up)
    count = num_taken.clamp_min(1) if is_scaled else max(1, sum(sizes))
    return {name: value / count for name, value in total.items()}, outcome

"""SCAFFOLD: control variates correct every local step for the drift between clients.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020, arXiv:1910.06378, Algorithm 1. A client starts at y = x, steps along g(y) - c_i + c, and
sends y - x and c_i^+ - c_i; the server takes x <- x + eta_g mean(y_i - x) and c <- c + |S| / N mean(c_i^+ - c_i). Here
eta_g = 1 and c_i^+ is that of option II, the mean gradient of the local steps, as in the paper's experiments.

Server state: the model x, and its control variate c as `control..<name>`. A client remembers c_i. All of them start at
zero, so c is the mean of all N clients' c_i at any time.

Differences from the paper:
- Clients send y_i in place of y_i - x: the same bytes, and the mean needs no rounding.
- Local steps are the SGD of `train`, the correction added to the gradient before weight decay and momentum. c_i^+, c_i
  - c + (x - y_i) / (K lr), is the mean gradient of the K steps for plain SGD only: under momentum it overstates it, up
  to 1 / (1 - momentum) times, and on digits momentum 0.9 diverges in 5 rounds. Weight decay counts as part of the
  gradient, as if it were in the loss.
"""

from dataclasses import replace
from typing import ClassVar

import torch

from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, TrainOutcome
from fedmpi.methods.protocol import Method, zeros_like
from fedmpi.methods.values import Client, ClientLoad, Contributions, Costs, LocalWork, MethodOptions, Training
from fedmpi.tensors import Params, Spec, to_device

CONTROL = "control.."
# B of a control variate, which is a gradient: parameters are no measure of it. Sums keep 2^-38 with 10 clients.
LARGEST_CONTROL = 2.0**20


class ScaffoldOptions(MethodOptions):
    uploads_nets: ClassVar[bool] = False
    only_sgd: ClassVar[str] = "scaffold corrects the gradients of SGD's steps"
    name: str = "scaffold"
    """Control variates against client drift (Karimireddy et al. 2020)."""


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

    def state_specs(self) -> dict[str, Spec]:
        return self.model_specs | {CONTROL + name: spec for name, spec in self.model_specs.items()}

    def bound(self, name: str, magnitude: float) -> float:
        return super().bound(name, magnitude) if name in self.model_specs else LARGEST_CONTROL

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Runs Algorithm 1, lines 16 and 17."""
        share = len(contributions.tasks) / self.context.clients.count
        new = dict(state)
        for name in self.model_specs:
            new[name] = means[name]
            new[CONTROL + name] = state[CONTROL + name].add(means[CONTROL + name], alpha=share)
        return new

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Runs lines 7 to 12; leaves in `scratch` c_i, zeros until the client has taken part, and what `_changes` makes
        the new one of."""
        net = trainer.net
        own = zeros_like(net.params, CONTROL) if client.memory is None else to_device(client.memory, net.device)
        client.scratch.update(own)
        client.scratch.update({f"correction.{name}": client.published[name] - value for name, value in own.items()})
        outcome = super().train(trainer, client, work)
        if num_taken := outcome.steps - outcome.left_out:
            client.scratch["path"] = torch.tensor(num_taken * work.lr, dtype=torch.float64)
        return outcome

    def count_steps(self, tier: int, num_examples: float, share: float) -> Training:
        """Counts x, c, c_i and the correction: three numbers for each parameter."""
        return replace(super().count_steps(tier, num_examples, share), values_per_update=3 * self._num_params, copies=3)

    def after_backward(self, net: FlatNet, client: Client) -> None:
        """Makes the gradient g(y) - c_i + c."""
        corrections = [client.scratch[f"correction.{CONTROL}{name}"] for name in net.grads]
        torch._foreach_add_(list(net.grads.values()), corrections)

    def _changes(self, net: FlatNet, client: Client) -> Params:
        """Returns c_i^+ - c_i; zeros for a client that took no step, or that diverged: how many steps of a path that
        was cut short are left is not known.
        """
        if client.is_restored or "path" not in client.scratch:
            return zeros_like(net.params, CONTROL)
        path = float(client.scratch["path"])
        changes = {}
        for name, value in net.params.items():
            changes[CONTROL + name] = (client.published[name] - value) / path - client.published[CONTROL + name]
        return changes

    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        return self.state_specs()

    def upload(self, net: FlatNet, client: Client) -> Params:
        return net.params | self._changes(net, client)

    def remember(self, net: FlatNet, client: Client) -> Params:
        return {name: client.scratch[name] + change for name, change in self._changes(net, client).items()}

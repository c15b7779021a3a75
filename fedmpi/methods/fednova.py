"""FedNova: clients' changes are divided by how far their steps go before they are averaged.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, NeurIPS 2020, arXiv:2007.07481. Client i takes tau_i steps of rate eta, which change x by -eta G_i a_i:
G_i are the gradients of its steps, a_i says how often each counts (section 4.1). The server takes

    x <- x - tau_eff sum of p_i eta d_i,   d_i = G_i a_i / |a_i|_1,   tau_eff = sum of p_i |a_i|_1   (section 5)

For SGD |a_i|_1 is tau; with momentum rho (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho); with a proximal term mu/2
|w - x|^2 of alpha = eta mu (1 - (1 - alpha)^tau) / alpha.

Server state: the model x, and tau_eff of the last round as `fednova.steps`, which clients never see.

Differences from the paper:
- |a_i|_1 is computed step by step, which also covers momentum and proximal term together; the authors' code adds both
  up. Weight decay counts as a part of the gradient.
- p_i are the weights of all methods (`weighting`), over the clients of the round.
- With a proximal term the authors' code takes tau_eff = sum of p_i tau_i; here it stays the sum of p_i |a_i|_1, so that
  clients of equal steps make the round of FedProx.
- A client that is back at its last finite parameters sends nothing, because how many steps those took is not known.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

import torch

from fedmpi.config.fields import NotNegative
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, TrainOutcome
from fedmpi.methods.protocol import Method, pull
from fedmpi.methods.values import Client, Contributions, LocalWork, Training, WeightedOptions
from fedmpi.tensors import Params, Spec

STEPS = "fednova.steps"
# B of |a_i|_1: a million steps. With momentum 0.9 a step counts up to ten times.
LARGEST_STEPS = 2.0**20


class FedNovaOptions(WeightedOptions):
    uploads_nets: ClassVar[bool] = False
    only_sgd: ClassVar[str] = "fednova normalizes the steps of SGD"
    name: str = "fednova"
    """Changes are normalized by the clients' local steps (Wang et al. 2020)."""
    mu: NotNegative = 0.0
    """Weight of a proximal term mu/2 |w - w_t|^2 in every client's loss, as fedprox has it."""


class FedNova(Method):
    """x <- x + mean of |a_i|_1 times mean of (x_i - x) / |a_i|_1."""

    Options = FedNovaOptions
    options: FedNovaOptions

    def state_specs(self) -> dict[str, Spec]:
        return self.model_specs | {STEPS: Spec((1,))}

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        return self.model_specs

    def bound(self, name: str, magnitude: float) -> float:
        return LARGEST_STEPS if name == STEPS else super().bound(name, magnitude)

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        steps = means[STEPS]
        return {STEPS: steps} | {name: state[name] + steps * means[name] for name in self.model_specs}

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        outcome = super().train(trainer, client, work)
        steps = normalizer(outcome.steps - outcome.left_out, self.context.train.momentum, work.lr * self.options.mu)
        client.scratch[STEPS] = torch.full((1,), steps, device=trainer.net.device)
        return outcome

    def count_steps(self, tier: int, num_examples: float, share: float) -> Training:
        """Counts x and the two passes of the proximal term: three numbers for each parameter in either."""
        training = replace(super().count_steps(tier, num_examples, share), copies=1)
        return training if self.options.mu == 0 else replace(training, values_per_update=6 * self._num_params)

    def after_backward(self, net: FlatNet, client: Client) -> None:
        pull(net, client, self.options.mu)

    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        return self.tier_specs[tier] | {STEPS: Spec((1,))}

    def upload(self, net: FlatNet, client: Client) -> Params | None:
        if client.is_restored:
            return None
        steps = client.scratch[STEPS]
        divisor = torch.where(steps == 0, 1.0, steps)  # without a step nothing has changed
        changes = {name: (value - client.published[name]) / divisor for name, value in net.params.items()}
        return changes | {STEPS: steps}


def normalizer(num_steps: int, momentum: float, alpha: float) -> float:
    """Returns |a|_1: how far `num_steps` steps of constant gradient 1 go, in learning rates."""
    distance = velocity = 0.0
    for _ in range(num_steps):
        velocity = momentum * velocity + 1.0 - alpha * distance
        distance += velocity
    return distance

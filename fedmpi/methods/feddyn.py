"""FedDyn: a linear and a quadratic term, renewed each round, let clients' optima meet in that of the mean loss.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama: Federated Learning Based on Dynamic
Regularization, ICLR 2021, arXiv:2111.04263, Algorithm 1. With x what the server published, l_k = 0 and h = 0 at the
start, P of m clients in the round:

    theta_k <- argmin of L_k(theta) - <l_k, theta> + alpha/2 |theta - x|^2     (eq. 1)
    l_k     <- l_k - alpha (theta_k - x)                                       (eq. 2: the gradient of L_k at theta_k)
    h       <- h - alpha / m sum over P of (theta_k - x)
    x       <- mean over P of theta_k, minus h / alpha

Server state: the model x, and h as `feddyn.h.<name>`, which clients never see. A client remembers l_k. So h is the mean
of all m clients' l_k at any time.

Differences from the paper:
- The argmin is what the steps of `train` come to; weight decay counts as a part of L_k.
"""

from dataclasses import replace

import torch

from fedmpi.config.fields import Positive
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, TrainOutcome
from fedmpi.methods.protocol import Method, pull, zeros_like
from fedmpi.methods.values import Client, Contributions, LocalWork, MethodOptions, Training
from fedmpi.tensors import Params, to_device

LINEAR = "feddyn.h."


class FedDynOptions(MethodOptions):
    name: str = "feddyn"
    """Dynamic regularization of clients' losses (Acar et al. 2021)."""
    alpha: Positive = 0.01
    """Weight of the terms; the paper has 0.1, 0.01 and 0.001."""


class FedDyn(Method):
    """x by the mean of what clients send, and by h."""

    Options = FedDynOptions
    options: FedDynOptions

    def initial_state(self) -> Params:
        model = super().initial_state()
        return model | zeros_like(model, LINEAR)

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        alpha = self.options.alpha
        share = len(contributions.tasks) / self.context.clients.count
        new = dict(state)
        for name in self.model_specs:
            new[LINEAR + name] = state[LINEAR + name] - alpha * share * (means[name] - state[name])
            new[name] = means[name] - new[LINEAR + name] / alpha
        return new

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Trains as the protocol does, with l_k in `scratch`: zeros until the client has taken part."""
        net = trainer.net
        own = zeros_like(net.params) if client.memory is None else to_device(client.memory, net.device)
        client.scratch.update(own)
        return super().train(trainer, client, work)

    def count_steps(self, tier: int, num_examples: float, share: float) -> Training:
        """Counts x, l_k and the three passes of the dynamic term: three numbers for each parameter in each."""
        return replace(super().count_steps(tier, num_examples, share), values_per_update=9 * self._num_params, copies=2)

    def after_backward(self, net: FlatNet, client: Client) -> None:
        """Makes the gradient g - l_k + alpha (theta - x)."""
        torch._foreach_sub_(list(net.grads.values()), [client.scratch[name] for name in net.grads])
        pull(net, client, self.options.alpha)

    def remember(self, net: FlatNet, client: Client) -> Params:
        changes = {name: value - client.published[name] for name, value in net.params.items()}
        return {name: client.scratch[name] - self.options.alpha * change for name, change in changes.items()}

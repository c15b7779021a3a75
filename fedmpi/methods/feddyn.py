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
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, ClientLoad, Contributions, LocalWork, MethodOptions, Training, counted_once
from fedmpi.tensors import Params, to_device


class FedDynOptions(MethodOptions):
    name: str = "feddyn"
    """Dynamic regularization of clients' losses (Acar et al. 2021)."""
    alpha: Positive = 0.01
    """Weight of the terms; the paper has 0.1, 0.01 and 0.001."""


class FedDyn(Method):
    """x by the mean of what clients send, and by h."""

    Options = FedDynOptions
    options: FedDynOptions

    # Server half.

    def initial_state(self) -> Params:
        model = super().initial_state()
        return model | {_linear(name): torch.zeros_like(value) for name, value in model.items()}

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        alpha = self.options.alpha
        share = len(contributions.tasks) / self.context.clients.count
        new = dict(state)
        for name in self.model_specs:
            new[_linear(name)] = state[_linear(name)] - alpha * share * (means[name] - state[name])
            new[name] = means[name] - new[_linear(name)] / alpha
        return new

    # Client half.

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Trains as the protocol does, with l_k on the net's device in `scratch`."""
        client.scratch.update(self._own(trainer.net, client))
        return super().train(trainer, client, work)

    def _own(self, net: FlatNet, client: Client) -> Params:
        """Returns l_k; zeros until the client has taken part."""
        if client.memory is None:
            return {name: torch.zeros_like(value) for name, value in net.params.items()}
        return to_device(client.memory, net.device)

    @counted_once
    def count_training(self, turn: ClientLoad) -> Training:
        """Counts x, l_k and the three passes of the dynamic term: three numbers for each parameter in each."""
        return replace(super().count_training(turn), values_per_update=9 * self._num_params, copies=2)

    def after_backward(self, net: FlatNet, client: Client) -> None:
        """Makes the gradient g - l_k + alpha (theta - x)."""
        gradients = list(net.grads.values())
        torch._foreach_sub_(gradients, [client.scratch[name] for name in net.grads])
        torch._foreach_add_(gradients, list(net.params.values()), alpha=self.options.alpha)
        torch._foreach_sub_(gradients, [client.published[name] for name in net.grads], alpha=self.options.alpha)

    def remember(self, net: FlatNet, client: Client) -> Params:
        changes = {name: value - client.published[name] for name, value in net.params.items()}
        return {name: client.scratch[name] - self.options.alpha * change for name, change in changes.items()}


def _linear(name: str) -> str:
    return f"feddyn.h.{name}"

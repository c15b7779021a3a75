"""Per-FedAvg: an initial model from which one step on a client's own data makes a good one.

A. Fallah, A. Mokhtari, A. Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach, NeurIPS 2020, arXiv:2002.07948, Algorithm 1 with its two
approximations of the meta-gradient. A local step with batches D, D' and D'':

    w~ = w - alpha grad f(w; D),  g = grad f(w~; D')
    FO:  w <- w - beta g
    HF:  w <- w - beta (g - alpha d),  d = (grad f(w + delta g; D'') - grad f(w - delta g; D'')) / (2 delta)

Server state: the model, the uniform mean of the clients'. Before a client is tested, it takes one
step of rate alpha on one batch of its training data.

Differences from the paper:
- The paper takes tau steps on independent batches; here tau is `train.local_steps`, or what
  `train.local_epochs` epochs of batches come to, counted by D'. D' are the batches of the client's
  permutations in federated averaging, D and D'' those of further, independent permutations of the
  same examples: a step passes 2 batches (FO) or 4 (HF).
- Steps are plain SGD: `train.momentum` and `train.weight_decay` are not used; `train.clip_norm`
  applies to the step of rate beta. alpha = 0 is federated averaging with plain steps of rate beta.
- alpha and beta are constants (0.01 and 0.001, as in a public implementation, KarhouTam/Per-FedAvg);
  `beta: lr` takes the learning rate of the round, with its schedule.
- The reported loss is that at w~.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fedmpi.config.fields import NotNegative, Positive
from fedmpi.config.schema import Config
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, Loss, TrainOutcome
from fedmpi.methods.protocol import Method, gradients
from fedmpi.methods.values import Client, ClientLoad, Costs, LocalWork, MethodContext, MethodOptions, Training

DELTA = 1e-3
"""Half the distance of HF's finite differences, in multiples of the gradient."""


class PerFedAvgOptions(MethodOptions):
    name: str = "perfedavg"
    """An initial model that one step adapts to a client (Fallah et al. 2020)."""
    variant: Literal["FO", "HF"] = "FO"
    """Meta-gradient: first order (second derivatives left out), or with a Hessian-vector product by finite
    differences, at twice the compute.
    """
    alpha: NotNegative = 0.01
    """Rate of the inner step, and of the step with which a client adapts the model before it is tested."""
    beta: Positive | Literal["lr"] = 0.001
    """Rate of the outer step; `lr` takes `train.lr` with its schedule."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        yield from self.only_sgd(config, "perfedavg takes plain SGD steps")


class PerFedAvg(Method):
    """theta <- mean of theta_p, each trained for what a step makes of it."""

    Options = PerFedAvgOptions
    options: PerFedAvgOptions
    personal = True

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        self.own_decay = list(self.model_specs)  # no weight decay at all

    def warnings(self) -> tuple[str, ...]:
        if self.context.train.weight_decay == self.context.train.momentum == 0:
            return ()
        if (beta := self.options.beta) == "lr":
            return ("perfedavg takes plain SGD steps: train.weight_decay and train.momentum do nothing",)
        problem = f"perfedavg takes plain SGD steps of rate method.beta, which is {beta:g}"
        advice = "method.beta=lr takes train.lr, as the config perfedavg_digits does"
        return (f"{problem}: train.lr, train.momentum and train.weight_decay do nothing; {advice}",)

    def costs(self, turn: ClientLoad) -> Costs:
        costs = super().costs(turn)
        return replace(costs, examples=costs.examples * self._gradients_per_step)

    @property
    def _gradients_per_step(self) -> int:
        return 2 if self.options.variant == "FO" else 4

    def count_training(self, turn: ClientLoad) -> Training:
        """Counts the gradients of a step; the inner step moves three numbers for each parameter."""
        training = super().count_training(turn)
        passes = [replace(step, count=self._gradients_per_step * step.count) for step in training.passes]
        return replace(training, passes=tuple(passes), values_per_update=3 * self._num_params)

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Runs the trainer's loop over D', with meta-gradients; momentum that starts at zero in each step is none."""
        net = trainer.net
        options = self.options
        generators = work.generator, client.generator("inner"), client.generator("curvature")
        outer, inner, curvature = (work.draws(trainer, client.examples, each) for each in generators)
        epochs = range(len(outer.examples))
        batches = ((epoch, *bounds) for epoch in epochs for bounds in trainer.bounds(len(client.examples)))
        start = net.copy_of_parameters()

        def step(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
            batch = next(batches)
            net.copy_parameters_to(start)
            _descend(net, *work.data.train_batch(inner, *batch), loss, options.alpha)
            value = _gradient(net, inputs, targets, loss)
            net.copy_parameters_from(start)
            if options.variant == "HF":
                _add_curvature(net, *work.data.train_batch(curvature, *batch), loss, options, start)
            return value

        lr = work.lr if options.beta == "lr" else options.beta
        return trainer.run(outer, lr, work.loss, step, lambda net: net.reset_momentum())

    def adapt(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> None:
        """Takes one step of rate alpha on one batch of training data."""
        order = torch.randperm(len(client.examples), generator=work.generator)
        examples = client.examples[order[: self.context.train.batch_size].numpy()]
        net = trainer.net
        draws = work.data.draws(examples, 1, work.generator, shuffle=False)
        net.module.train()
        _descend(net, *work.data.train_batch(draws, 0, 0, len(examples)), work.loss, self.options.alpha)


def _descend(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss, alpha: float) -> None:
    """Takes a step of rate alpha on one batch."""
    _gradient(net, inputs, targets, loss)
    torch._foreach_add_(list(net.params.values()), list(net.grads.values()), alpha=-alpha)


def _add_curvature(
    net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss, options: PerFedAvgOptions, start: Tensor
) -> None:
    """Turns g in the net's gradients into g - alpha d; the parameters stay as their copy `start` has them."""
    params = list(net.params.values())
    grads = list(net.grads.values())
    outer = [gradient.clone() for gradient in grads]
    torch._foreach_add_(params, outer, alpha=DELTA)
    _gradient(net, inputs, targets, loss)
    ahead = [gradient.clone() for gradient in grads]
    net.copy_parameters_from(start)
    torch._foreach_sub_(params, outer, alpha=DELTA)
    _gradient(net, inputs, targets, loss)
    net.copy_parameters_from(start)
    torch._foreach_sub_(grads, ahead)
    torch._foreach_mul_(grads, options.alpha / (2 * DELTA))
    torch._foreach_add_(grads, outer)


def _gradient(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """Computes one batch's gradient at the net's parameters, into its gradient buffer; returns the loss (0-dim)."""
    net.zero_gradient()
    return gradients(loss(net.module(inputs), targets))

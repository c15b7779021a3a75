"""Per-FedAvg: an initial model from which one step on a client's own data makes a good one.

A. Fallah, A. Mokhtari, A. Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach, NeurIPS 2020, arXiv:2002.07948, Algorithm 1 with its two approximations of the meta-gradient. A
local step with batches D, D' and D'':

    w~ = w - alpha grad f(w; D),  g = grad f(w~; D')
    FO:  w <- w - beta g
    HF:  w <- w - beta (g - alpha H g),  H the Hessian of f(w; D'')

Server state: the model, the uniform mean of the clients'. Before a client is tested, it takes `adaptation_steps` steps
of rate alpha, each on one batch of its training data.

Differences from the paper:
- The paper takes tau steps on independent batches. Here tau is `train.local_steps`, or the batches of
  `train.local_epochs` epochs. D' are the batches of federated averaging, D and D'' those of further, independent
  permutations of the same examples: a step passes 2 batches (FO) or 4 (HF).
- The paper approximates H g by (grad f(w + delta g; D'') - grad f(w - delta g; D'')) / (2 delta). In float32 no delta
  is good for all nets: a large one steps over kinks of ReLU, a small one leaves rounding. So a second backward pass
  computes H g exactly, at the same cost.
- Steps are plain SGD, without `train.momentum` and `train.weight_decay`; `train.clip_norm` applies to the step of rate
  beta. alpha = 0 is federated averaging with plain steps of rate beta.
- alpha and beta are constants (0.01 and 0.001, as in a public implementation, KarhouTam/Per-FedAvg).
- The reported loss is that at w~.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedmpi.config.fields import Count, NotNegative, Positive
from fedmpi.config.schema import Config
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, Loss, TrainOutcome, batches_of, plain_step
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, LocalWork, MethodContext, MethodOptions, Training


class PerFedAvgOptions(MethodOptions):
    only_sgd: ClassVar[str] = "perfedavg takes plain SGD steps"
    name: str = "perfedavg"
    """An initial model that a few steps adapt to a client (Fallah et al. 2020)."""
    variant: Literal["FO", "HF"] = "FO"
    """Meta-gradient: first order (second derivatives left out), or with a Hessian-vector product, at twice the
    compute and not in fp16.
    """
    alpha: NotNegative = 0.01
    """Rate of the inner step, and of the steps with which a client adapts the model before it is tested."""
    beta: Positive | Literal["lr"] = 0.001
    """Rate of the outer step; `lr` takes `train.lr` with its schedule."""
    adaptation_steps: Count = 1
    """Steps with which a client adapts the model before it is tested, each on a batch drawn from its examples."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.variant == "HF" and config.train.precision == "fp16":
            # A part of H g never passes the net's outputs, where the scale comes in, so it cannot be divided out.
            yield "train.precision", "fp16, which scales no second derivatives, and HF takes them; allowed: fp32, bf16"


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

    def count_steps(self, tier: int, num_examples: float, share: float) -> Training:
        """Counts the gradients of a step; the inner step moves three numbers for each parameter.

        During it w is kept; HF has its gradient at w~ and H g besides.
        """
        training = super().count_steps(tier, num_examples, share)
        gradients_per_step = 2 if self.options.variant == "FO" else 4
        copies = 1 if self.options.variant == "FO" else 3
        passes = [replace(step, count=gradients_per_step * step.count) for step in training.passes]
        return replace(training, passes=tuple(passes), values_per_update=3 * self._num_params, copies=copies)

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Runs the trainer's loop over D', with meta-gradients; momentum that starts at zero in each step is none."""
        net = trainer.net
        options = self.options
        generators = work.generator, client.generator("inner"), client.generator("curvature")
        outer, inner, curvature = (work.draws(trainer, client.examples, each) for each in generators)
        epochs = range(len(outer.examples))
        batches = ((epoch, *bounds) for epoch in epochs for bounds in batches_of(trainer.train, len(client.examples)))
        start = net.parameter.clone()

        def step(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
            batch = next(batches)
            start.copy_(net.parameter)
            _descend(net, *work.data.train_batch(inner, *batch), loss, options.alpha)
            value = _gradient(net, inputs, targets, loss)
            net.parameter.copy_(start)
            if options.variant == "HF":
                _add_curvature(net, *work.data.train_batch(curvature, *batch), loss, options.alpha)
            return value

        lr = work.lr if options.beta == "lr" else options.beta
        return trainer.run(outer, lr, work.loss, step, lambda net: net.reset_momentum())

    def adapt(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> None:
        """Takes steps of rate alpha, each on one batch of training data."""
        net = trainer.net
        net.module.train()
        for _ in range(self.options.adaptation_steps):
            order = torch.randperm(len(client.examples), generator=work.generator)
            examples = client.examples[order[: self.context.train.batch_size].numpy()]
            draws = work.data.draws(examples, 1, work.generator, shuffle=False)
            _descend(net, *work.data.train_batch(draws, 0, 0, len(examples)), work.loss, self.options.alpha)


def _descend(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss, alpha: float) -> None:
    """Takes a step of rate alpha on one batch."""
    _gradient(net, inputs, targets, loss)
    torch._foreach_add_(list(net.params.values()), list(net.grads.values()), alpha=-alpha)


def _add_curvature(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss, alpha: float) -> None:
    """Turns g in the net's gradients into g - alpha H g, with the Hessian of one batch at the net's parameters."""
    own = dict(net.module.named_parameters())
    params = [own[name] for name in net.params]
    grads = list(net.grads.values())
    with sdpa_kernel(SDPBackend.MATH):  # torch's other forms of attention have no second derivative
        value = loss(net.module(inputs), targets)
    first = torch.autograd.grad(value, params, create_graph=True, materialize_grads=True)
    slope = torch.stack([(one * grad).sum() for one, grad in zip(first, grads, strict=True)]).sum()
    products = torch.autograd.grad(slope, params, materialize_grads=True)
    torch._foreach_add_(grads, products, alpha=-alpha)


def _gradient(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """Computes one batch's gradient at the net's parameters, into its gradient buffer; returns the loss (0-dim)."""
    net.gradient.zero_()
    return plain_step(net, inputs, targets, loss)

"""MOON: a contrastive term pulls what a client's net sees towards the global net, and away from its own of before.

Q. Li, B. He, D. Song: Model-Contrastive Federated Learning, CVPR 2021, arXiv:2103.16257. Algorithm 1; eq. 3 and 4: with
z, z_glob and z_prev the representations of an example by the net that trains, by the published net, and by the client's
net at the end of its last round, and sim the cosine,

    l_con = -log exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau))
    l     = cross-entropy + mu mean of l_con

Server state: the model. A client remembers its net.

Differences from the paper:
- The representation is what the layer that gives the classes gets. The paper puts a head of two layers between.
- A client that comes for the first time has no net of before, so no contrastive term, as in the authors' code.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.config.fields import NotNegative, Positive
from fedmpi.errors import ConfigError
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, Loss, TrainOutcome, gradients
from fedmpi.methods.protocol import Method, copy_into
from fedmpi.methods.values import Client, ClientLoad, LocalWork, MethodContext, Training, WeightedOptions
from fedmpi.tensors import Params


class MoonOptions(WeightedOptions):
    name: str = "moon"
    """Representations are pulled towards the global net's (Li et al. 2021)."""
    mu: NotNegative = 1.0
    """Weight of the contrastive term; the paper tunes it among 0.1, 1, 5 and 10."""
    temperature: Positive = 0.5
    """tau: small ones weigh large similarities more."""


class Moon(Method):
    """theta <- mean of theta_p, each trained with a contrast between two older nets."""

    Options = MoonOptions
    options: MoonOptions

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        layers = [name for name, part in context.make(empty=True).named_modules() if isinstance(part, nn.Linear)]
        self._classifier = context.classifier() or (layers[-1] if layers else "")
        if not self._classifier:
            raise ConfigError("method.name", "moon needs a net in which one layer gives the classes, and this has none")

    def count_training(self, turn: ClientLoad) -> Training:
        """Counts the two older nets and their forward passes; a client without memory has none yet."""
        training = super().count_training(turn)
        if turn.is_first or (turn.client is not None and turn.client.memory is None):
            return training
        forward = [replace(step, count=2 * step.count, backward=False) for step in training.passes]
        return replace(training, passes=(*training.passes, *forward), copies=2)

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        if client.memory is None:
            return super().train(trainer, client, work)
        net = trainer.net
        published = net.parameter.clone()
        copy_into(net.params, client.memory)
        previous = net.parameter.clone()
        net.parameter.copy_(published)

        def step(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
            own = net.parameter.clone()
            seen = []
            for parameters in (published, previous):
                net.parameter.copy_(parameters)
                with torch.no_grad():
                    seen.append(self._outputs(net, inputs)[1])
            net.parameter.copy_(own)
            outputs, representation = self._outputs(net, inputs)
            return gradients(loss(outputs, targets) + self.options.mu * self._contrast(representation, *seen))

        return super().train(trainer, client, replace(work, backward=step))

    def _outputs(self, net: FlatNet, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the scores and the representations, float32 (batch, numbers)."""
        seen: list[Tensor] = []
        layer = net.module.get_submodule(self._classifier)
        hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            outputs = net.module(inputs)
        finally:
            hook.remove()
        return outputs, net.outputs(seen[-1].flatten(1)).float()

    def _contrast(self, representation: Tensor, published: Tensor, previous: Tensor) -> Tensor:
        """Returns the mean of l_con over the batch."""
        towards = F.cosine_similarity(representation, published)
        away = F.cosine_similarity(representation, previous)
        return F.softplus((away - towards) / self.options.temperature).mean()

    def remember(self, net: FlatNet, client: Client) -> Params:
        return {name: value.clone() for name, value in net.params.items()}

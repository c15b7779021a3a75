"""Federated averaging in which some clients attack: to try an aggregate on, `method.name=attacks:Attacked`.

label_flip   They train with class c as num_classes - 1 - c.
sign_flip    They send x - factor (x_i - x) for x_i, what honest training made of the published x.
scaled       They flip labels and send x + factor (x_i - x): model replacement. E. Bagdasaryan, A. Veit, Y. Hua,
             D. Estrin, V. Shmatikov: How To Backdoor Federated Learning, AISTATS 2020, arXiv:1807.00459.

Who attacks is drawn once by the run's seed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from fedmpi import seeds
from fedmpi.config.fields import Positive, Share
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, LocalWork, MethodOptions

if TYPE_CHECKING:
    from fedmpi.learning.flat import FlatNet
    from fedmpi.learning.local import LocalTrainer, TrainOutcome
    from fedmpi.tensors import Params


class AttackedOptions(MethodOptions):
    """Options of `attacked`."""

    name: str = "attacked"
    """Federated averaging with attackers."""
    attack: Literal["label_flip", "sign_flip", "scaled"] = "sign_flip"
    """What attackers do."""
    share: Share = 0.3
    """The share of the clients that attack."""
    factor: Positive = 5.0
    """How many times their change attackers send."""


class Attacked(Method):
    """The server knows of nothing."""

    Options = AttackedOptions
    options: AttackedOptions

    def attacks(self, client: Client) -> bool:
        """Returns whether the client is an attacker."""
        count = self.context.clients.count
        order = torch.randperm(count, generator=seeds.torch_generator("attackers", self.context.seed))
        return client.task.client in order[: round(self.options.share * count)]

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        if self.attacks(client) and self.options.attack != "sign_flip":
            last = self.context.num_classes - 1
            work = replace(work, loss=lambda logits, labels, loss=work.loss: loss(logits, last - labels))
        return super().train(trainer, client, work)

    def upload(self, net: FlatNet, client: Client) -> Params:
        if not self.attacks(client) or self.options.attack == "label_flip":
            return net.params
        factor = self.options.factor * (-1 if self.options.attack == "sign_flip" else 1)
        return {name: torch.lerp(client.published[name], value, factor) for name, value in net.params.items()}

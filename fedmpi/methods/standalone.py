"""Standalone: every client trains a model of its own on its own data, and nothing is exchanged.

The baseline of A. Li, J. Sun, P. Li, Y. Pu, H. Li, Y. Chen: Hermes: An Efficient Federated Learning Framework for
Heterogeneous Mobile Clients, MobiCom 2021, section 5.3: local training only, for the same total time as the federated
methods.

Server state: the initial model, from which a client starts when it first takes part. A client remembers its model, and
is tested with it.

Differences from the paper:
- The paper turns the time that communication would take into further epochs, and does not say how many. Here time is
  counted in rounds. A device of a federated run waits in the rounds whose cohort it is not in; one that needs no server
  trains `train.local_epochs` epochs in every round. Clients are simulated in the cohorts of a federated run, so each
  makes up for the rounds between its turns: `epochs_factor: auto` is clients.count / clients.per_round. `epochs_factor:
  1` is the other fair comparison, with as much compute per client. The epochs are in every record.
- A model begins each of its client's rounds with a fresh optimizer, at the round's learning rate.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Literal

from fedmpi.config.fields import Positive
from fedmpi.config.schema import Train
from fedmpi.learning.local import LocalTrainer, TrainOutcome, step_sizes
from fedmpi.methods.kept_parts import KeptParts
from fedmpi.methods.values import Client, Contributions, LocalWork, MethodOptions, Training
from fedmpi.tensors import Params, Spec


class StandaloneOptions(MethodOptions):
    name: str = "standalone"
    """Hermes's baseline: every client trains for itself, nothing is exchanged."""
    epochs_factor: Positive | Literal["auto"] = "auto"
    """How many times `train.local_epochs`, or `train.local_steps`, a client trains in each round that it is drawn for
    (whole epochs or steps, at least one). `auto`: clients.count / clients.per_round, so that it has trained in every
    round's time; 1: with as much compute as in a federated run.
    """


class Standalone(KeptParts):
    """theta_p stays with p."""

    Options = StandaloneOptions
    options: StandaloneOptions

    @cached_property
    def training(self) -> Train:
        """Returns `train` with the local epochs and steps of a round."""
        factor = self.options.epochs_factor
        if factor == "auto":
            factor = self.context.clients.count / self.context.clients.per_round
        train = self.context.train
        epochs = max(1, round(factor * train.local_epochs))
        return train.model_copy(update={"local_epochs": epochs, "local_steps": math.ceil(factor * train.local_steps)})

    def count_steps(self, tier: int, num_examples: float, share: float) -> Training:
        return Training.of(tier, step_sizes(self.training, num_examples, share))

    def kept(self, round_number: int | None) -> tuple[str, ...]:
        return tuple(self.model_specs)

    def state_specs(self) -> dict[str, Spec]:
        return {}

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        return self.model_specs

    def diagnostics(self, state: Params, published: Params, contributions: Contributions) -> Mapping[str, object]:
        train = self.training
        return {"local_steps": train.local_steps} if train.local_steps else {"local_epochs": train.local_epochs}

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        epochs = self.training.local_epochs
        return super().train(trainer, client, replace(work, epochs=epochs, steps=self.training.local_steps))

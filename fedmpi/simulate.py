"""One client on the worker that simulates it: fetch its memory, narrow, train, contribute.

Workers are stateless: any of them may train any client in any round, with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fedmpi import seeds
from fedmpi.data import present_labels
from fedmpi.errors import DivergenceError
from fedmpi.exchange import CONTRIBUTED, DROPPED, ClientReport
from fedmpi.federation import Task, learning_rate
from fedmpi.learning import FlatNet, LocalTrainer, MaskedCrossEntropy
from fedmpi.methods.protocol import Client, Method
from fedmpi.setup import Published, Setup
from fedmpi.tensors import Params


def simulate_client(setup: Setup, task: Task, published: Published) -> tuple[ClientReport, Params | None]:
    """Fetch the client's memory, narrow, train, and what it contributes (None if it is dropped)."""
    method, trainer, clock = setup.method, setup.trainers[task.tier], setup.clock
    where = task.round_number, task.client
    with clock.stage("submodel_creation", *where):
        memory = setup.memories.get(task.client, published.versions.get(task.client)) if method.keeps_memory else None
        client = Client(task, published.params, memory)
        method.narrow(published.params, task.tier, trainer.net.params)
        method.restore(trainer.net, client)
    with clock.stage("local_training", *where) as timer:
        examples = setup.partition.client(task.client)
        generator = seeds.torch_generator("batches", setup.config.seed, task.round_number, task.client)
        draws = setup.data.draws(examples, setup.config.train.local_epochs, generator)
        outcome = trainer.run(
            draws,
            learning_rate(setup.config.train, task.round_number, setup.config.rounds),
            _loss(setup, examples),
            lambda net, x, y, loss: method.backward(net, x, y, loss, client),
            lambda net: method.after_backward(net, client),
        )
        contributes = _settle_divergence(setup, trainer, client, published.bounds, outcome.finite)
        upload = method.upload(trainer.net, client)
        digest = ""
        if contributes and method.keeps_memory:
            _, digest = setup.memories.put(task.client, task.round_number, method.remember(trainer.net, client))
    status = CONTRIBUTED if contributes else DROPPED
    report = ClientReport(task.client, status, outcome.steps, outcome.loss, timer.seconds, digest)
    return report, upload if contributes else None


def _loss(setup: Setup, examples: np.ndarray) -> MaskedCrossEntropy:
    if not setup.config.train.masked_loss:
        return MaskedCrossEntropy(None)
    present = present_labels(setup.labels, examples, setup.data.info.num_classes)
    return MaskedCrossEntropy(torch.from_numpy(present).to(setup.data.device))


def _settle_divergence(
    setup: Setup, trainer: LocalTrainer, client: Client, bounds: Mapping[str, float], finite: bool
) -> bool:
    """Whether the client contributes, after `train.on_divergence` has had its say. One synchronization."""
    policy = setup.config.train.on_divergence
    if finite and _is_bounded(setup.method, trainer.net, client, bounds):
        return True
    if policy == "fail":
        raise DivergenceError(
            "training diverged: a loss was not finite or above 1000, or a parameter left its bound; lower train.lr, "
            "or choose train.on_divergence=drop or upload_last_finite"
        )
    if policy == "drop":
        return False
    trainer.restore_last_finite()
    return _is_bounded(setup.method, trainer.net, client, bounds)


def _is_bounded(method: Method, net: FlatNet, client: Client, bounds: Mapping[str, float]) -> bool:
    """Whether everything this client would add is finite and within the bounds that exact sums need."""
    largest = method.magnitudes(method.upload(net, client), client.task).double()
    limits = torch.tensor(list(bounds.values()), dtype=torch.float64, device=largest.device)
    return bool((largest <= limits).all())  # False for NaN, too

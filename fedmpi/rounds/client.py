"""One client on the worker that simulates it: fetch its memory, narrow, train, contribute.

Workers are stateless: any of them may train any client in any round, with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from fedmpi import seeds
from fedmpi.data.partition import present_labels
from fedmpi.errors import ConfigError, DivergenceError
from fedmpi.federation.assignment import Task
from fedmpi.federation.cohort import learning_rate
from fedmpi.learning.determinism import global_generator
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, MaskedCrossEntropy
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, LocalWork, Turn
from fedmpi.rounds.exchange import CONTRIBUTED, DROPPED, ClientReport, ClientResult
from fedmpi.rounds.state import Published, Setup, client_of
from fedmpi.tensors import Params, misfit


def simulate_client(setup: Setup, task: Task, published: Published) -> ClientResult:
    """Fetch the client's memory, narrow, train; what it reports and contributes."""
    method, trainer, clock = setup.method, setup.trainers[task.tier], setup.clock
    where = task.round_number, task.client
    with clock.stage("submodel_creation", *where):
        client = client_of(setup, task, published, published.versions.get(task.client))
        method.narrow(published.params, task.tier, trainer.net.params, client)
    with clock.stage("local_training", *where) as timer:
        with global_generator(_seed(client, "dropout"), setup.data.device):
            outcome = method.train(trainer, client, local_work(setup, client))
        upload, client = _settle_divergence(setup, trainer, client, published.bounds, outcome.finite)
        digest = "" if upload is None else _remember(setup, trainer.net, client)
    costs = method.costs(Turn.of(client))
    status = DROPPED if upload is None else CONTRIBUTED
    did = outcome.steps, outcome.loss, timer.seconds, costs.down_bytes, costs.up_bytes, int(client.is_restored)
    return ClientReport(task.client, status, *did, outcome.left_out, digest), upload


def _remember(setup: Setup, net: FlatNet, client: Client) -> str:
    """Stores the client's new memory; its digest, empty where there is nothing new."""
    memory = setup.method.remember(net, client) if setup.method.traits.keeps_memory else {}
    if not memory:
        return ""
    return setup.memories.put(client.task.client, client.task.round_number, memory)[1]


def _seed(client: Client, purpose: str) -> int:
    """The seed of this client's training in this phase of this round."""
    task = client.task
    return seeds.mix(f"{purpose}:{task.phase}", client.seed, task.round_number, task.client)


def local_work(setup: Setup, client: Client) -> LocalWork:
    """What the client's training works with in this phase of this round."""
    train, number = setup.config.train, client.task.round_number
    present = None
    if train.masked_loss:
        labels = present_labels(setup.labels, client.examples, setup.data.info.num_classes)
        if not labels.all():  # asked on the host, where nothing has to wait for the answer
            present = torch.from_numpy(labels).to(setup.data.device, non_blocking=True)
    generator = torch.Generator().manual_seed(_seed(client, "batches"))
    lr = learning_rate(train, number, setup.config.rounds)
    return LocalWork(setup.data, train.local_epochs, lr, MaskedCrossEntropy(present), generator)


def _settle_divergence(
    setup: Setup, trainer: LocalTrainer, client: Client, bounds: Mapping[str, float], finite: bool
) -> tuple[Params | None, Client]:
    """What the client contributes after `train.on_divergence` has had its say, and the client, which knows whether that
    is of its last finite parameters. One synchronization.
    """
    policy = setup.config.train.on_divergence
    upload = _bounded_upload(setup.method, trainer.net, client, bounds) if finite else None
    if upload is not None:
        return upload, client
    if policy == "fail":
        raise DivergenceError(
            "training diverged: a loss was not finite or above 1000, or a parameter left its bound; lower train.lr, "
            "or choose train.on_divergence=drop or upload_last_finite"
        )
    if policy == "drop":
        return None, client
    trainer.restore_last_finite()
    restored = replace(client, is_restored=True)
    upload = _bounded_upload(setup.method, trainer.net, restored, bounds)
    return upload, client if upload is None else restored


def _bounded_upload(method: Method, net: FlatNet, client: Client, bounds: Mapping[str, float]) -> Params | None:
    """The upload, if everything this client would add is finite and within the bounds that exact sums need. What stays
    with a client must be finite, too, or it would come back from its memory.
    """
    upload = method.upload(net, client)
    if upload is None:
        return None
    if odd := misfit(upload, method.upload_specs(client.task.tier, client.task)):
        # A copy or a sum would broadcast another shape without a word.
        raise ConfigError("method.name", f"'{method.options.name}' uploads {odd} by its upload_specs")
    # A method without uploads has the largest of none on the host.
    largest = method.magnitudes(upload, client).to(net.device, torch.float64)
    limits = torch.tensor(list(bounds.values()), dtype=torch.float64).to(net.device, non_blocking=True)
    good = (largest <= limits).all()  # False for NaN, too
    if method.traits.keeps_memory:
        good &= net.is_finite()
    return upload if bool(good) else None

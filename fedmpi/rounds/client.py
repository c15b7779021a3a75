"""One client on the worker that simulates it: read its memory, narrow, train, upload.

Workers are stateless: any of them may train any client in any round, with the same bits.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from fedmpi import seeds
from fedmpi.data.partition import present_labels
from fedmpi.errors import ConfigError, DivergenceError
from fedmpi.federation.assignment import Task
from fedmpi.federation.cohort import learning_rate
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, loss_of
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, ClientLoad, LocalWork
from fedmpi.rounds.state import CONTRIBUTED, DROPPED, LOST, ClientReport, Published, Setup, client_of
from fedmpi.tensors import Params, first_mismatch, max_magnitudes


def simulate_client(setup: Setup, task: Task, published: Published) -> tuple[ClientReport, Params | None]:
    """Trains one client. Returns its report and its upload (None: dropped), which the next one's training overwrites.

    A client whose upload never arrives is not trained, because nothing of its training is used. One that would be late
    gets nothing at all.
    Raises `RoundError`, which names the client.
    """
    method = setup.method
    trainer = setup.trainers[task.tier]
    where = (task.round_number, task.client)
    if task.is_late:
        return ClientReport(task.client, LOST), None
    with setup.clock.stage("submodel_creation", *where):
        client = client_of(setup, task, published)
        if not task.arrives:
            return _finished(setup, client, ClientReport(task.client, LOST)), None
        method.narrow(published.params, task.tier, trainer.net.params, client)
    with setup.clock.stage("local_training", *where):
        with seeds.global_generators(_seed(client, "dropout"), setup.data.device):
            outcome = method.train(trainer, client, local_work(setup, client))
        upload, client = _upload(setup, trainer, client, published.bounds, outcome.finite)
        memory = {} if upload is None else method.remember(trainer.net, client)
        memory_digest = setup.memories.put(task.client, task.round_number, memory)[1] if memory else ""
        # A user's method may return numbers of numpy or torch, whose pickles are long.
        report = ClientReport(
            client=task.client,
            status=DROPPED if upload is None else CONTRIBUTED,
            steps=int(outcome.steps),
            loss=float(outcome.loss),
            restored=int(client.is_restored),
            left_out=int(outcome.left_out),
            memory_digest=memory_digest,
        )
    return _finished(setup, client, report), upload


def _finished(setup: Setup, client: Client, report: ClientReport) -> ClientReport:
    """Adds what the client has moved and, where devices have a clock, what that has taken."""
    load = ClientLoad.of(client)
    costs = setup.method.costs(load)
    up_bytes = int(costs.up_bytes) if client.task.arrives else 0
    report = replace(report, down_bytes=int(costs.down_bytes), up_bytes=up_bytes)
    if setup.fleet is None:
        return report
    spent = setup.fleet.turn(client.task, load, costs)
    return replace(report, simulated_ns=int(spent.ns), simulated_uj=int(spent.uj))


def _seed(client: Client, purpose: str) -> int:
    """Returns the seed of this client's training in this phase of this round."""
    task = client.task
    return seeds.mix(f"{purpose}:{task.phase}", client.seed, task.round_number, task.client)


def local_work(setup: Setup, client: Client) -> LocalWork:
    """Builds the client's data, learning rate, loss and generator in this phase of this round."""
    train = setup.config.train
    present = None
    if train.masked_loss:
        labels = present_labels(setup.data.labels, client.examples, setup.data.info.num_classes)
        if not labels.all():  # on the host, so that nothing waits for the device
            present = torch.from_numpy(labels).to(setup.data.device, non_blocking=True)
    generator = torch.Generator().manual_seed(_seed(client, "batches"))
    lr = learning_rate(train, client.task.round_number, setup.config.rounds)
    loss = loss_of(train, setup.data.info.task, present)
    share = client.task.share
    return LocalWork(setup.data, train.local_epochs, lr, loss, generator, steps=train.local_steps, share=share)


def _upload(
    setup: Setup, trainer: LocalTrainer, client: Client, bounds: Mapping[str, float], is_finite: bool
) -> tuple[Params | None, Client]:
    """Returns the client's upload (None: it is dropped) and the client, restored if the upload is of its last finite
    parameters. Raises `DivergenceError` if it diverged and `train.on_divergence` is `fail`.
    """
    policy = setup.config.train.on_divergence
    upload = _bounded_upload(setup.method, trainer.net, client, bounds) if is_finite else None
    if upload is None and policy == "fail":
        raise DivergenceError(
            "training diverged: a loss was not finite or above 1000, or a parameter left its bound; lower train.lr, "
            "or choose train.on_divergence=drop or upload_last_finite"
        )
    if upload is None and policy == "upload_last_finite":
        trainer.restore_last_finite()
        restored = replace(client, is_restored=True)
        upload = _bounded_upload(setup.method, trainer.net, restored, bounds)
        client = client if upload is None else restored
    return upload, client


def _bounded_upload(method: Method, net: FlatNet, client: Client, bounds: Mapping[str, float]) -> Params | None:
    """Returns the upload, None unless all of it is finite and within the bounds that exact sums need.

    What stays with a client must be finite, too: it comes back from its memory. Waits for the device once.
    """
    upload = method.upload(net, client)
    if upload is None:
        return None
    if odd := first_mismatch(upload, method.upload_specs(client.task.tier, client.task)):
        # A copy or a sum would broadcast another shape.
        raise ConfigError("method.name", f"'{method.options.name}' uploads {odd} by its upload_specs")
    # Of an upload without tensors `magnitudes` is a tensor on the CPU.
    largest = method.magnitudes(upload, client).to(net.device, torch.float64)
    limits = torch.tensor(list(bounds.values()), dtype=torch.float64).to(net.device, non_blocking=True)
    is_good = (largest <= limits).all()  # False for NaN, too
    if method.keeps_memory:
        is_good &= max_magnitudes(net.params.values()).isfinite().all()
    return upload if bool(is_good) else None

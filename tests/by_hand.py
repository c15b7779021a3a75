"""What the tests of single methods share: training that can be done by hand, and what a short run leaves behind.

Unless a test brings a net of its own, it has a weight for each feature and no bias; the loss of a
batch is the mean of (w x - y)^2 / 2, its gradient the mean of (w x - y) x. With numbers of few binary
places float32 is exact.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import run_alone
from torch import Tensor, nn

from fedmpi.config.schema import Clients, Train
from fedmpi.data.batches import DeviceData
from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.learning.local import LocalTrainer
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, Contributions, LocalWork, MethodContext, MethodOptions, Phase
from fedmpi.store import checkpoint
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir
from fedmpi.tensors import Params

PLAIN = Train(momentum=0.0, weight_decay=0.0, local_epochs=1, batch_size=64, lr=0.25)
"""Full batches, lr 1/4."""


def squared_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs[:, 0] - targets) ** 2).mean() / 2


@dataclass
class Bench:
    """A method whose clients fit `weights` to examples (x, y); client p has the examples numbered in `owned[p]`."""

    make: type[Method]
    options: MethodOptions
    x: Sequence[Sequence[float]]
    y: Sequence[int]
    owned: Sequence[Sequence[int]]
    train: Train = PLAIN
    num_clients: int = 0
    net: Callable[[], nn.Module] | None = None
    memories: dict[int, Params] = field(default_factory=dict)

    def __post_init__(self) -> None:
        x, y = np.array(self.x, np.float32), np.array(self.y, np.int64)
        info = DataInfo("vector", (x.shape[1],), int(y.max()) + 1, len(y), len(y))
        self.data = DeviceData(info, Dataset(x, y, x, y), "cpu", augment=False)

        net = self.net or (lambda: nn.Linear(x.shape[1], 1, bias=False))

        clients = Clients(count=self.num_clients or len(self.owned), per_round=len(self.owned))
        self.method = self.make(
            MethodContext(self.options, lambda empty=False: net(), train=self.train, clients=clients)
        )
        own = self.method.own_decay
        layout = net_layout(net().named_parameters(), own, channels_last=False)
        flat = FlatNet(net(), layout, Buffers(layout.num_bytes, "cpu"))
        self.trainer = LocalTrainer(flat, self.data, self.train, list(own))

    def start(self, *weights: float) -> Params:
        """A state with these weights, in the order of the parameters, and whatever else the method begins with."""
        state, values = self.method.initial_state(), iter(weights)
        for name in self.trainer.net.params:
            state[name] = torch.tensor([next(values) for _ in state[name].flatten()]).view(state[name].shape)
        return state

    def client(self, number: int, state: Params, round_number: int = 1) -> Client:
        """Client `number`, after `narrow`: the trainer's net is its."""
        examples = np.array(self.owned[number])
        task = Task(number, 0, round_number, "train", len(examples), 1.0, number, len(self.owned))
        published = {name: state[name].clone() for name in self.method.published_specs({0})}
        client = Client(task, published, examples, 0, lambda: self.memories.get(number))
        self.method.narrow(published, 0, self.trainer.net.params, client)
        return client

    def work(self, client: Client) -> LocalWork:
        return LocalWork(self.data, self.train.local_epochs, self.train.lr, squared_loss, client.generator("batches"))

    def trained(self, number: int, state: Params, round_number: int = 1) -> tuple[Client, Params]:
        """A client after its round, its memory renewed, and what it uploads."""
        client = self.client(number, state, round_number)
        self.method.train(self.trainer, client, self.work(client))
        upload = {name: value.clone() for name, value in self.method.upload(self.trainer.net, client).items()}
        new = self.method.remember(self.trainer.net, client) if self.method.keeps_memory else {}
        assert client.memory is self.memories.get(number)
        self.memories |= {number: {name: value.clone() for name, value in new.items()}} if new else {}
        return replace(client, recall=lambda: self.memories.get(number)), upload

    def round(self, state: Params, round_number: int = 1) -> Params:
        """The state after a round in which everybody of `owned` takes part; means are taken in float64."""
        lifted = []
        for number in range(len(self.owned)):
            client, upload = self.trained(number, state, round_number)
            lifted.append(dict(self.method.lift(upload, client)))
        means = {n: torch.stack([one[n].double() for one in lifted]).mean(0).float() for n in self.method.state_specs()}
        tasks = [self.client(number, state, round_number).task for number in range(len(self.owned))]
        return self.method.update(state, means, Contributions(Phase(), round_number, self.train.lr, tasks))

    @property
    def weights(self) -> list[float]:
        """What the trainer's net has now."""
        return [number for value in self.trainer.net.params.values() for number in value.flatten().tolist()]


def numbers(state: Mapping[str, Tensor], name: str = "weight") -> list[float]:
    return state[name].flatten().tolist()


@dataclass(frozen=True)
class Left:
    """What a short run left behind: the server's tensors, and the memory of every client that has one."""

    server: Params
    memories: dict[int, Params]


def newest(folder: Path) -> Snapshot:
    """Returns the newest checkpoint of this run."""
    snapshot = checkpoint.load_newest_intact(RunDir(folder), pytest.fail)
    assert snapshot is not None
    return snapshot


def after(folder: Path, *overrides: str) -> Left:
    """A run of `small_runs.SMALL` with these overrides, alone in this process."""
    run_alone(folder, *overrides)
    snapshot = newest(folder)
    store = MemoryStore(RunDir(folder))
    memories = {client: dict(store.get(client, version) or {}) for client, version in snapshot.clients.items()}
    return Left(dict(snapshot.server), memories)


def with_torchs_statistics(net: nn.Module, batches: Iterable[Tensor]) -> nn.Module:
    """In evaluation mode, with torch's own running statistics: momentum None is their plain mean over the batches."""
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum, part.track_running_stats = None, True
            part.running_mean, part.running_var = torch.zeros(part.num_features), torch.ones(part.num_features)
            part.num_batches_tracked = torch.tensor(0)
    net.train()
    with torch.no_grad():
        for inputs in batches:
            net(inputs)
    return net.eval()

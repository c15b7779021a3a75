"""FDNNC on one layer of six weights: a client's training, a round through the real exchange."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from narrow_nets import PLAIN, context, exchanged
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.check.contract import published_for
from fedmpi.config.schema import Clients, Train
from fedmpi.data.batches import DeviceData
from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.learning.local import LocalTrainer, MaskedCrossEntropy, TrainOutcome
from fedmpi.methods.fdnnc import BIG, FDNNC, FDNNCOptions
from fedmpi.methods.values import Client, Contributions, LocalWork
from fedmpi.tensors import Params

A, BT = "fc.v.weight", "fc.u.weight"
"""As the server calls them: v is applied last, u first."""
EXAMPLES = torch.tensor([[1.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.0, -1.0, 3.0]])
LABELS = torch.tensor([0, 1, 1])
MLP = ("method.name=fdnnc", "model.name=mlp", "model.hidden=[16]")


class OneLayer(nn.Module):
    """Three inputs, two outputs: the smallest layer that r = 1 makes smaller (5 numbers for 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class TwoLayers(nn.Module):
    """Six inputs, five hidden units, three outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x)))


def method_of(blocks: tuple[int, int], per_round: int, net: type[nn.Module] = OneLayer, **options: object) -> FDNNC:
    def make(*ignored: object) -> nn.Module:
        torch.manual_seed(0)
        return net()

    clients, train = Clients(count=sum(blocks), per_round=per_round), PLAIN.model_copy(update={"batch_size": 8})
    return FDNNC(context(FDNNCOptions(**options), make, clients=clients, tier_blocks=blocks, train=train))


def state_of(method: FDNNC, **values: list) -> Params:
    """The initial state, with what is given of the one layer."""
    state = method.initial_state()
    given = {f"fc.{short}": torch.tensor(value) for short, value in values.items()}
    assert all(state[name].shape == value.shape for name, value in given.items())
    return state | given


def published(method: FDNNC, state: Params, *nets: int) -> Params:
    return published_for(method, state, nets)


Gradients = Callable[[Task, Params], Mapping[str, Tensor] | None]


def iteration(
    method: FDNNC, state: Params, gradients: Gradients, *, lr: float = 1.0, number: int = 1, kind: str = "gather"
) -> Params:
    """A round in which the first clients of each group take part; `gradients` are theirs, None of one that diverges."""
    for phase in method.phases(number):
        (tier,) = phase.tiers
        first, count = (0, method.blocks[BIG])[tier], phase.num_clients
        tasks = [Task(first + place, tier, number, phase.name, 1, 1.0, place, count) for place in range(count)]
        known = published(method, state, tier)
        given = {task: gradients(task, known) for task in tasks}
        contributed = [task for task in tasks if given[task]]
        uploads = [
            (
                Client(task, known, np.arange(1), 0),
                sent and {name: sent[name] for name in method.upload_specs(task.tier, task)},
            )
            for task, sent in given.items()
        ]
        results = exchanged(method, state, *uploads, kind=kind)
        if contributed:
            brought = Contributions(phase, number, lr, contributed, results.shares)
            state = method.refresh(method.update(state, results.means, brought))
    return state


def constant(**gradients: list) -> Gradients:
    """Everybody's gradients; what is not given is zero."""
    named = {f"fc.{short}": torch.tensor(value) for short, value in gradients.items()}

    def of(task: Task, known: Params) -> Params:
        return {name: named.get(name, torch.zeros(value.shape)) for name, value in known.items()}

    return of


def trainer_of(method: FDNNC, tier: int, x: Tensor, y: Tensor) -> tuple[LocalTrainer, DeviceData]:
    info = DataInfo("vector", (x.shape[1],), int(y.max()) + 1, len(y), len(y))
    data = DeviceData(info, Dataset(x.numpy(), y.numpy(), x.numpy(), y.numpy()), "cpu", augment=False)
    layout = net_layout(method.net(tier, empty=True).named_parameters(), [], channels_last=False)
    net = FlatNet(method.net(tier), layout, Buffers(layout.num_bytes, "cpu"))
    return LocalTrainer(net, data, Train(batch_size=8), []), data


def trained(
    method: FDNNC, task: Task, known: Params, x: Tensor, y: Tensor, examples: list[int]
) -> tuple[Params, FlatNet, TrainOutcome]:
    """What a client that owns these examples uploads, the net that it leaves behind, and the outcome."""
    trainer, data = trainer_of(method, task.tier, x, y)
    client = Client(task, known, np.array(examples, np.int64), 0)
    method.narrow(known, task.tier, trainer.net.params, client)
    work = LocalWork(data, 3, 0.5, MaskedCrossEntropy(None), torch.Generator().manual_seed(1))
    outcome = method.train(trainer, client, work)
    return method.upload(trainer.net, client), trainer.net, outcome

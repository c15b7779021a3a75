"""What a method is given and gives: its options, its context, a client, the phases of a round, what a phase brought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from fedmpi import seeds
from fedmpi.config.schema import Section
from fedmpi.federation.plan import Task
from fedmpi.federation.tiers import equal_blocks

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from fedmpi.data.batches import DeviceData
    from fedmpi.learning.local import MaskedCrossEntropy
    from fedmpi.tensors import Params

    MakeNet = Callable[..., nn.Module]


class MethodOptions(Section):
    """What every method's options have beside their own."""

    name: str

    @property
    def tiers(self) -> tuple[float, ...]:
        """The capacity of each tier, largest first (FedHM: rank ratios); one full tier by default."""
        return (1.0,)

    def tier_blocks(self, num_clients: int) -> tuple[int, ...]:
        """Clients per tier where `clients.tier_blocks` does not say: equal blocks, the remainder with the last."""
        return equal_blocks(num_clients, len(self.tiers))


@dataclass(frozen=True)
class MethodContext:
    """What a method is built from: its options, and the experiment as far as it concerns a method.

    `make_net(width, rounding, seed)` gives the model with values, the same ones at every call: its
    width multiplied by `width`, channels rounded by `rounding`, its values those of another seed if
    asked. `make_skeleton(width, rounding)` gives it on the meta device, without values and at no
    cost. `present_labels` says which classes a client's training examples have (bool, shape (classes,)).
    `tier_blocks` are clients per tier.
    """

    options: MethodOptions
    make_net: MakeNet
    make_skeleton: MakeNet
    dense_layers: int
    weight_decay: float
    dynamic_tiers: bool
    channels_last: bool
    seed: int
    num_clients: int = 1
    clients_per_round: int = 1
    tier_blocks: tuple[int, ...] = ()
    num_classes: int = 0
    local_epochs: int = 1
    batch_size: int = 1
    momentum: float = 0.0
    present_labels: Callable[[int], np.ndarray] | None = None


@dataclass(frozen=True)
class Client:
    """One client as a method sees it: its task, what the server published, and what it remembers.

    `memory` is what `remember` returned when the client last took part, None if it never did; for
    `lift` and `regions`, which come after training, it is the new one. It is read when first asked
    for. `examples` are the numbers of its training examples, int64. `seed` is the run's. `scratch`
    carries what a method finds in `train` to its `upload` and `remember`.
    """

    task: Task
    published: Params
    examples: np.ndarray
    seed: int
    recall: Callable[[], Params | None] = lambda: None
    scratch: Params = field(default_factory=dict)

    @cached_property
    def memory(self) -> Params | None:
        return self.recall()

    def generator(self, purpose: str) -> torch.Generator:
        """Randomness of this client in this round, the same on every rank: kernels to sample, widths to draw."""
        stream = f"method:{purpose}:{self.task.phase}"
        return seeds.torch_generator(stream, self.seed, self.task.round_number, self.task.client)


@dataclass(frozen=True)
class LocalWork:
    """What local training works with: data on the device, epochs, learning rate, loss, and its random numbers."""

    data: DeviceData
    epochs: int
    lr: float
    loss: MaskedCrossEntropy
    generator: torch.Generator

    @property
    def labels(self) -> Tensor:
        """The labels of all training examples, int64 (N,), on the device; a client's are `labels[client.examples]`."""
        return self.data.train_y


@dataclass(frozen=True)
class TestedNet:
    """A net that is tested after a round: its name in the records, and which of the method's nets it is."""

    name: str
    net: int
    rank_ratio: float


@dataclass(frozen=True)
class Phase:
    """One exchange of a round: which tiers take part (None: all) and how many clients (None: `clients.per_round`)."""

    name: str = "train"
    tiers: frozenset[int] | None = None
    num_clients: int | None = None


@dataclass(frozen=True)
class Contributions:
    """What a phase brought beside the means: who contributed, at which learning rate, and how much of it where.

    `shares` says of a server tensor which share of the contributors' weight each of its entries got:
    1.0, or float64 of the tensor's shape where some clients hold only part of it (exactly 1 where
    all of them do, 0 where nobody does).
    """

    phase: Phase
    round_number: int
    lr: float
    tasks: Sequence[Task]
    shares: Callable[[str], float | Tensor] = lambda name: 1.0

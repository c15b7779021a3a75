"""What a method is given and gives: its options and context, a client, costs, phases, what came of a phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedmpi import seeds
from fedmpi.config.fields import Count, PartialShare, Section
from fedmpi.config.schema import Clients, Config, Train
from fedmpi.data.batches import DeviceData, Draws
from fedmpi.errors import UnknownError
from fedmpi.federation.assignment import Task
from fedmpi.federation.tiers import equal_blocks
from fedmpi.learning.local import Backward, LocalTrainer, Loss, batches_of, num_steps, plain_step
from fedmpi.methods import aggregate, robust
from fedmpi.tensors import Params

LayerRank = Literal["dense"] | PartialShare | Count
"""What an option asks of a single layer: to stay dense, a rank ratio, or a rank."""


class MethodOptions(Section):
    """What every method's options have beside their own."""

    capacity: ClassVar[str] = ""
    """The option that has the capacity of each tier, largest first (FedHM: `rank_ratio`), or of a smaller one than the
    full tier (FDNNC); none: one full tier."""
    name: str
    uploads_nets: ClassVar[bool] = True
    """Each client sends the parameters that it has trained, so those of different clients can be compared."""
    needs_blocks: ClassVar[bool] = False
    """Cohorts follow `clients.tier_blocks` where devices decide tiers (`clients.tier_assignment=fits`), too."""
    adds_parameters: ClassVar[bool] = False
    """Clients train parameters that the model has not, so that none of its own has to be trained."""
    only_sgd: ClassVar[str] = ""
    """Why clients cannot have another optimizer, as the middle of a sentence."""
    aggregate: robust.Rule = "mean"
    """What makes the server's tensors of the clients' uploads: the weighted `mean`, `median`, `trimmed_mean`, `krum` or
    `norm_clip` (options: `aggregate.name=krum aggregate.attackers=2`), or `package.module:Class` of your own.
    """

    @property
    def tiers(self) -> tuple[float, ...]:
        """Returns the capacity of each tier, largest first."""
        given = getattr(self, self.capacity) if self.capacity else (1.0,)
        return given if isinstance(given, tuple) else (1.0, given)

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        """Yields (dotted key, message) of what is wrong.

        Capacities must fall: tiers are named by what is shown of them, and clients.tier_blocks begins with the largest.
        """
        capacities: tuple[float, ...] = self.tiers
        shown = [f"{capacity:g}" for capacity in capacities]
        is_falling = len(set(shown)) == len(shown) and all(one > two for one, two in pairwise(capacities))
        if self.capacity and not is_falling:
            yield f"method.{self.capacity}", f"expected ratios that fall from tier to tier, got {', '.join(shown)}"
        if config.model.trained == "none" and not self.adds_parameters:
            problem = f"none, but {self.name} trains the net's own parameters"
            yield "model.trained", f"{problem}; name some of them, or take method.name=lora"
        if self.aggregate != "mean":
            yield from self._aggregate_problems(config)
        if self.only_sgd and config.train.optimizer != "sgd":
            yield "train.optimizer", f"{config.train.optimizer}, but {self.only_sgd}; allowed: sgd"

    def _aggregate_problems(self, config: Config) -> Iterator[tuple[str, str]]:
        rule = self.aggregate
        if isinstance(rule, Section):
            yield from rule.problems(config)
            if not self.uploads_nets or (rule.needs_whole_nets and self.capacity):
                text = f"{rule.name} compares nets, and clients of {self.name} send other things or parts of a net"
                per_entry = ", median, trimmed_mean" if self.uploads_nets else ""
                yield "method.aggregate", f"{text}; allowed: mean{per_entry}, or package.module:Class"
        else:
            try:
                aggregate.named(rule)
            except UnknownError as error:
                allowed = "mean, median, trimmed_mean, krum, norm_clip, or package.module:Class"
                yield "method.aggregate", f"{error}; allowed: {allowed}"
        if config.mpi.exchange == "reduce":
            yield "mpi.exchange", "reduce adds up means, and method.aggregate is another; allowed: gather, auto"

    def needs_classes(self) -> dict[str, str]:
        """Returns each option (or `name`) whose value makes sense only where targets are classes, and what else may be
        chosen then.
        """
        return {}

    def tier_blocks(self, num_clients: int) -> tuple[int, ...]:
        """Returns the clients of each tier without `clients.tier_blocks`: equal blocks, the last has the remainder."""
        return equal_blocks(num_clients, len(self.tiers))


class WeightedOptions(MethodOptions):
    """What methods share whose server weighs clients by their examples."""

    weighting: Literal["uniform", "samples"] = "samples"
    """Weight of a client in the mean: its number of training examples (n_k / n), or the same for all."""


@dataclass(frozen=True)
class MethodContext:
    """What a method is built from: its options, the model, and the sections of the config that concern it.

    `make(width, rounding, seed, empty=...)` gives the model: its width multiplied by `width`, channels rounded by
    `rounding`, its values those of the run's seed, or of another; an `empty` one is on the meta device, without values.
    `dense_layers` are the model's own, `tier_blocks` the clients per tier. `present_labels` says which classes a
    client's training examples have (bool, shape (classes,)). `tiers_in_use` has the tiers that devices leave some
    client, () where devices do not decide tiers. `classifier` returns the name of the layer that gives the classes, or
    '' if no conv or linear layer does.
    """

    options: MethodOptions
    make: Callable[..., nn.Module]
    train: Train = field(default_factory=Train)
    clients: Clients = field(default_factory=Clients)
    seed: int = 0
    tier_blocks: tuple[int, ...] = ()
    tiers_in_use: tuple[int, ...] = ()
    dense_layers: int = 0
    num_classes: int = 0
    present_labels: Callable[[int], np.ndarray] | None = None
    classifier: Callable[[], str] = lambda: ""


@dataclass(frozen=True)
class Client:
    """One client as a method sees it: its task, what the server published, and what it remembers.

    `memory` is what `remember` returned when the client last took part, None if it never did; for `lift` and `regions`,
    which come after training, it is the new one. It is read when first asked for. `examples` are the numbers of its
    training examples, int64. `seed` is the run's. `scratch` carries what `train` finds to `upload` and `remember`.
    `is_restored` says there that training diverged, and that the net is back at its last finite parameters.
    """

    task: Task
    published: Params
    examples: np.ndarray
    seed: int
    recall: Callable[[], Params | None] = lambda: None
    scratch: Params = field(default_factory=dict)
    is_restored: bool = False

    @cached_property
    def memory(self) -> Params | None:
        return self.recall()

    def generator(self, purpose: str) -> torch.Generator:
        """Returns this client's generator in this round, the same on every rank (kernels to sample, widths to draw)."""
        return generator_of(self.task, self.seed, purpose)


def generator_of(task: Task, seed: int, purpose: str) -> torch.Generator:
    """Returns the generator of a task, which takes nothing but the run's seed."""
    return seeds.torch_generator(f"method:{purpose}:{task.phase}", seed, task.round_number, task.client)


@dataclass(frozen=True)
class LocalWork:
    """What local training works with: data on the device, epochs, learning rate, loss, and its random numbers.

    `steps`, where it is not 0, is the number of steps in place of `epochs`; the client does `share` of them (`draws`).
    `backward(net, inputs, targets, loss)` computes the gradients of one mini-batch into the net's gradient buffer and
    returns the loss (0-dim).
    """

    data: DeviceData
    epochs: int
    lr: float
    loss: Loss
    generator: torch.Generator
    backward: Backward = plain_step
    steps: int = 0
    share: float = 1.0

    def draws(self, trainer: LocalTrainer, examples: np.ndarray, generator: torch.Generator | None = None) -> Draws:
        """Draws what is random in this work on `examples` (int64 (n,)), by another generator if one is given."""
        num_batches = len(batches_of(trainer.train, len(examples)))
        steps = num_steps(num_batches, self.epochs, self.steps, self.share)
        epochs = -(-steps // num_batches) if num_batches else self.epochs
        return replace(self.data.draws(examples, epochs, generator or self.generator), steps=steps)


@dataclass(frozen=True)
class ClientLoad:
    """A client's part in a round, as far as it is known when its costs are asked for.

    A plan knows the tier, perhaps the round (None: a typical one) and how many examples the client has. `task` is there
    where it is known who trains, `client` after training, to count what has really moved.
    """

    tier: int
    num_examples: float = 0.0
    round_number: int | None = None
    client: Client | None = None
    share: float = 1.0
    """Share of the round's local work that the client does."""
    task: Task | None = None
    is_first: bool = False
    """True in a plan if the client has no memory yet."""

    @classmethod
    def of(cls, client: Client) -> ClientLoad:
        """Returns what `client` has done."""
        return replace(cls.of_task(client.task), client=client)

    @classmethod
    def of_task(cls, task: Task) -> ClientLoad:
        """Returns what a client is to do."""
        return cls(task.tier, task.num_examples, task.round_number, share=task.share, task=task)


@dataclass(frozen=True)
class Costs:
    """The protocol bytes that a turn costs a real client, each way."""

    down_bytes: int
    up_bytes: int


@dataclass(frozen=True)
class Passes:
    """`count` mini-batches of `size` examples that pass net `net`, forward and, with `backward`, for gradients."""

    net: int
    size: int
    count: int
    backward: bool = True


@dataclass(frozen=True, eq=False)
class Training:
    """What a turn computes on a real client's device, exactly. Each equals itself only: that is found fast."""

    passes: tuple[Passes, ...]
    updates: int
    """Steps of the optimizer."""
    values_per_update: int = 0
    """float32 numbers that the method's regularizer reads and writes in a step."""
    macs_per_update: int = 0
    """Multiply-accumulates of the method's regularizer in a step."""
    copies: int = 0
    """How often a client holds its net's parameters beside net, gradients and the optimizer's state."""
    nets_in_turn: int = 1
    """How many independent nets, which train one after another, the tier's net consists of."""
    kept: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Layer -> how many of its weights are left, and of how many; a layer that is not named is whole."""

    @classmethod
    def of(cls, net: int, sizes: Sequence[int]) -> Training:
        """Returns plain steps on mini-batches of these sizes."""
        counts = sorted(Counter(sizes).items())
        return cls(tuple(Passes(net, size, count) for size, count in counts), len(sizes))

    @property
    def examples(self) -> int:
        """Counts the examples that pass forward and backward."""
        return sum(each.count * each.size for each in self.passes if each.backward)

    def macs(self, macs_of_nets: Sequence[float]) -> float:
        """Returns the compute in the papers' measure: examples that pass forward x MACs of their net."""
        return sum(each.count * each.size * macs_of_nets[each.net] for each in self.passes)


@dataclass(frozen=True)
class Phase:
    """One exchange of a round: which tiers take part (None: all) and how many clients (None: `clients.per_round`)."""

    name: str = "train"
    tiers: frozenset[int] | None = None
    num_clients: int | None = None


@dataclass(frozen=True)
class Contributions:
    """What came of a phase beside the means: who contributed, at which learning rate, and how much of it where.

    `shares` says of a server tensor which share of the contributors' weight each of its entries got: 1.0, or float64 of
    the tensor's shape where some clients hold only part of it. `published` is what these clients got.
    """

    phase: Phase
    round_number: int
    lr: float
    tasks: Sequence[Task]
    shares: Callable[[str], float | Tensor] = lambda name: 1.0
    published: Params = field(default_factory=dict)

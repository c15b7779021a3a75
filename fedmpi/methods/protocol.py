"""What a federated method is: the functions a round calls, server half and client half in one class.

A round (`fedmpi.train_round`) calls, in this order:

    rank 0          publish(state)            what clients need, as named tensors
    every worker    narrow, restore           this client's net: out of what was published, out of its memory
                    train                     local training: `backward`, `after_backward` in each step
                    upload, remember          the client's result, in the form that travels; its new memory
    rank 0 (or the  lift(upload)              the result in server coordinates, tensor by tensor
     worker)
    rank 0          update(state, means)      the new state, out of weighted means over the clients

Everything has a default that makes `Method` itself federated averaging: a method overrides what it
changes and nothing else. State and published tensors are values: named tensors, passed in and
returned; nothing is remembered in `self` between rounds. A method never sees a communicator, a
path, a clock or an environment variable, and its file imports no torch at module level, so that
its options can be validated before torch loads. How to write one: `fedmpi/methods/README.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from fedmpi import seeds
from fedmpi.config.schema import Section
from fedmpi.federation.plan import Task
from fedmpi.federation.tiers import Tier

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from fedmpi.data import DeviceData
    from fedmpi.exactsum import Region
    from fedmpi.learning import FlatNet, LocalTrainer, MaskedCrossEntropy, TrainOutcome
    from fedmpi.tensors import Params, Spec

    Loss = Callable[[Tensor, Tensor], Tensor]
    MakeNet = Callable[..., nn.Module]


class MethodOptions(Section):
    """What every method's options have beside their own."""

    name: str

    @property
    def tiers(self) -> tuple[float, ...]:
        """The capacity of each tier, largest first (FedHM: rank ratios); one full tier by default."""
        return (1.0,)


@dataclass(frozen=True)
class MethodContext:
    """What a method is built from: its options, and the experiment as far as it concerns a method.

    `make_net` gives the model with values, the same ones at every call, its width multiplied by an
    optional argument; `make_skeleton` gives it on the meta device, without values and at no cost.
    `present_labels` says which classes a client's training examples have (bool, shape (classes,)).
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


class Method:
    """Federated averaging, and the base of every other method."""

    publishing_is: Literal["submodel_creation", "svd"] = "submodel_creation"
    """The stage of PriSM's Table 3 that the server's `publish` counts as."""
    keeps_memory: bool = False
    """Whether clients keep something of their own between rounds (`remember`, `restore`)."""
    own_decay: Collection[str] = ()
    """Names of parameters that weight decay must leave alone, because the method decays them itself."""

    def __init__(self, context: MethodContext) -> None:
        self.context = context
        self.tiers = tuple(Tier(i, f"{capacity:g}", capacity) for i, capacity in enumerate(context.options.tiers))

    @cached_property
    def _dense_specs(self) -> dict[str, Spec]:
        return self._specs_of(self.context.make_skeleton())

    @cached_property
    def _net_specs(self) -> list[dict[str, Spec]]:
        return [self._specs_of(self.skeleton(tier.index)) for tier in self.tiers]

    def _specs_of(self, net: nn.Module) -> dict[str, Spec]:
        from fedmpi.tensors import specs_of

        return specs_of(net.named_parameters(), channels_last=self.context.channels_last)

    # The shape of a round.

    @property
    def num_nets(self) -> int:
        """How many different nets there are: one per tier, then any that only testing needs."""
        return len(self.tiers)

    def tested(self) -> tuple[TestedNet, ...]:
        """The nets that are tested on the whole test set: by default those that the tiers train."""
        return tuple(TestedNet(tier.name, tier.index, tier.rank_ratio) for tier in self.tiers)

    def phases(self, round_number: int) -> tuple[Phase, ...]:
        """The exchanges of this round, in order."""
        return (Phase(),)

    # Server half.

    def state_specs(self) -> dict[str, Spec]:
        """Names and shapes of the server's tensors that uploads are averaged into."""
        return self._dense_specs

    def initial_state(self) -> Params:
        """The state before round 1, a function of the seed alone."""
        return {name: value.detach().clone() for name, value in self.context.make_net().named_parameters()}

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        """Names and shapes of what these nets (by number) are made of; every rank knows them without being told."""
        return self.state_specs()

    def publish(self, state: Params, nets: Collection[int], out: Params) -> None:
        """Writes into `out` (as `published_specs` says) what these nets are made of."""
        from fedmpi.tensors import copy_into

        copy_into(out, state)

    def client_weight(self, task: Task) -> float:
        """The weight of a client's result, up to a factor common to the cohort."""
        return 1.0

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        """The upload in server coordinates: (name in `state_specs`, tensor), one at a time.

        The tensor has the shape of the region that `regions` gives, else of the whole. A name that
        is never given counts as zeros, unless its region is empty.
        """
        yield from upload.items()

    def regions(self, client: Client) -> Mapping[str, Region]:
        """The entries a client holds, for tensors of which it does not hold all. Empty: it holds everything.

        A function of what every rank knows and, where `keeps_memory`, of the client's new memory.
        """
        return {}

    def magnitudes(self, upload: Params, client: Client) -> Tensor:
        """Upper bounds of max|x| of what `lift` will give, one for each of `state_specs` in its order."""
        from fedmpi.tensors import max_magnitudes

        return max_magnitudes(upload[name] for name in self.state_specs())

    def bound(self, name: str, magnitude: float) -> float:
        """B of a server tensor for the coming phase: a client's entry beyond it counts as diverged.

        `magnitude` is the state's largest entry. To override where uploads are no parameters.
        """
        from fedmpi.exactsum import bound_of

        return bound_of(magnitude)

    def warnings(self) -> tuple[str, ...]:
        """What is legal but hardly meant, one line each; said before a run and in its plan."""
        return ()

    def update(self, state: Params, means: Params, phase: Phase, contributed: Sequence[Task]) -> Params:
        """The new state, out of the old and the weighted means over the clients that contributed.

        Entries that nobody sent have their old value in `means`.
        """
        return {**state, **means}

    # Client half.

    def net(self, number: int) -> nn.Module:
        """The net that clients of the tier of this number train, with any values (they come from `narrow`)."""
        return self.context.make_net()

    def skeleton(self, number: int) -> nn.Module:
        """The same net without values, on the meta device: for counting."""
        return self.context.make_skeleton()

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        """Writes net `number` into `out`, its parameters: for a client, or (None) for a test."""
        from fedmpi.tensors import copy_into

        copy_into(out, published)

    def restore(self, net: FlatNet, client: Client) -> None:
        """Puts what the client remembers (a local part, a mask) into the net that `narrow` has filled."""

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Local training: epochs of mini-batch SGD. To override where a method trains otherwise."""
        draws = work.data.draws(client.examples, work.epochs, work.generator)
        return trainer.run(
            draws,
            work.lr,
            work.loss,
            lambda net, inputs, targets, loss: self.backward(net, inputs, targets, loss, client),
            lambda net: self.after_backward(net, client),
        )

    def backward(self, net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss, client: Client) -> Tensor:
        """Gradients of one mini-batch into the net's gradient buffer; returns the loss (0-dim)."""
        value = loss(net.module(inputs), targets)
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    def after_backward(self, net: FlatNet, client: Client) -> None:
        """Adds a regularizer's gradient, corrects or masks gradients, before the optimizer's step."""

    def upload_specs(self, tier: int) -> dict[str, Spec]:
        """Names and shapes of what a client of this tier sends back."""
        return self._net_specs[tier]

    def upload(self, net: FlatNet, client: Client) -> Params:
        """What the client sends back, as `upload_specs` says; views of the net are fine, they are copied at once."""
        return net.params

    def remember(self, net: FlatNet, client: Client) -> Params:
        """The client's new memory (only where `keeps_memory`); any tensors, of any shapes."""
        return {}

    # What it would cost real clients.

    def download_bytes(self, tier: int) -> int:
        """Protocol bytes that a client of this tier receives in a round: 4 per parameter of its net."""
        return sum(spec.num_bytes for spec in self.upload_specs(tier).values())

    def upload_bytes(self, tier: int) -> int:
        """Protocol bytes that it sends."""
        return self.download_bytes(tier)

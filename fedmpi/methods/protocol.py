"""What a federated method is: the functions a round calls, server half and client half in one class.

A round (`fedmpi.train_round`) calls, in this order:

    rank 0          publish(state)            what clients need, as named tensors
    every worker    narrow, restore           this client's net: out of what was published, out of its memory
                    train                     local training: `backward`, `after_backward` in each step
                    upload, remember          the client's result, in the form that travels; its new memory
    rank 0 (or the  lift(upload)              the result in server coordinates, tensor by tensor
     worker)
    rank 0          update(state, means)      the new state, out of weighted means over the clients
                    refresh(state)            what the server recomputes of it (an SVD)

After a round, where clients are tested with nets of their own: narrow, restore, adapt, test.

Everything has a default that makes `Method` itself federated averaging: a method overrides what it
changes and nothing else. State and published tensors are values: named tensors, passed in and
returned; nothing is remembered in `self` between rounds. A method never sees a communicator, a
path, a clock or an environment variable, and its file imports no torch at module level, so that
its options can be validated before torch loads. How to write one: `fedmpi/methods/README.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from fedmpi.federation.plan import Task
from fedmpi.federation.tiers import Tier
from fedmpi.methods.values import Client, Contributions, LocalWork, MethodContext, MethodOptions, Phase, TestedNet

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedmpi.exactsum import Region
    from fedmpi.learning.flat import FlatNet
    from fedmpi.learning.local import LocalTrainer, TrainOutcome
    from fedmpi.tensors import Params, Spec

    Loss = Callable[[Tensor, Tensor], Tensor]

__all__ = ["Client", "Contributions", "LocalWork", "Method", "MethodContext", "MethodOptions", "Phase", "TestedNet"]


class Method:
    """Federated averaging, and the base of every other method."""

    Options: ClassVar[type[MethodOptions]]
    """Its options, with its name and one line about it."""
    publishing_is: Literal["submodel_creation", "svd"] = "submodel_creation"
    """The stage of PriSM's Table 3 that the server's `publish` counts as."""
    keeps_memory: bool = False
    """Whether clients keep something of their own between rounds (`remember`, `restore`)."""
    personal: bool = False
    """Whether clients end with nets of their own, so that `evaluation.personal: auto` tests each on its own data."""
    why_equal: str = "its size does not follow the capacity; take another model, or one tier"
    """Why tiers may come out with equal nets, and what to do: the end of the line that `equal_tiers` says."""
    draws_on: Collection[str] = ()
    """Names of the server's tensors that `drawn` reads. Each round's record keeps them, as the next round has them."""
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

    def examples_per_round(self, num_examples: float) -> float:
        """How many examples a client with `num_examples` passes forward and backward in a round."""
        return float(self.context.local_epochs * num_examples)

    def macs_per_round(self, num_examples: float, tier: int, macs: Sequence[float]) -> float:
        """The client's compute in the papers' measure, forward MACs x examples; `macs` has those of each net."""
        return self.examples_per_round(num_examples) * macs[tier]

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
        import torch

        from fedmpi.tensors import max_magnitudes

        sent = next(iter(upload.values()), None)
        nothing = torch.empty(0) if sent is None else sent.new_empty(0)
        return max_magnitudes(upload.get(name, nothing) for name in self.state_specs())

    def bound(self, name: str, magnitude: float) -> float:
        """B of a server tensor for the coming phase: a client's entry beyond it counts as diverged.

        `magnitude` is the state's largest entry. To override where uploads are no parameters.
        """
        from fedmpi.exactsum import bound_of

        return bound_of(magnitude)

    def warnings(self) -> tuple[str, ...]:
        """What is legal but hardly meant, one line each; said before a run and in its plan."""
        return ()

    def equal_tiers(self) -> tuple[str, ...]:
        """A line for each net that several tiers have in common, or that is the whole model below a capacity of 1.

        Said with `warnings`. To override where tiers are meant to have one net.
        """
        if all(tier.rank_ratio == 1 for tier in self.tiers):
            return ()
        whole = self._specs_of(self.context.make_skeleton())
        found: dict[tuple[tuple[int, ...], ...], list[Tier]] = {}
        for tier, specs in zip(self.tiers, self._net_specs, strict=True):
            found.setdefault(tuple(spec.shape for spec in specs.values()), []).append(tier)
        said = []
        for shapes, tiers in found.items():
            is_whole = shapes == tuple(spec.shape for spec in whole.values())
            if len(tiers) > 1 or (is_whole and tiers[0].rank_ratio < 1):
                names, size = ", ".join(tier.name for tier in tiers), sum(map(math.prod, shapes))
                net = "the whole net" if is_whole else "one and the same net"
                have = f"tiers {names} have" if len(tiers) > 1 else f"tier {names} has"
                said.append(f"{have} {net} of {size:,} parameters: {self.why_equal}")
        return tuple(said)

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """The new state, out of the old and the weighted means over the clients that contributed.

        Entries that nobody sent have their old value in `means`.
        """
        return {**state, **means}

    def refresh(self, state: Params) -> Params:
        """What the server recomputes of its state after `update` (PriSM: the SVD); counted as the stage `svd`."""
        return state

    def diagnostics(self, state: Params, contributions: Contributions) -> Mapping[str, object]:
        """Numbers about the new state for the round's record: what JSON can hold."""
        return {}

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

    def drawn(self, client: Client) -> Mapping[str, object]:
        """What was drawn at random for this client in this phase, beside its tier: what JSON can hold.

        For `fedmpi.draws`, so it must come out of the very functions that training uses. Of `client.published` only the
        tensors of `draws_on` are there, and no memory. By default the tensors that other clients of its tier send, but
        not this one.
        """
        sent = self.upload_specs(client.task.tier, client.task)
        withheld = [name for name in self.upload_specs(client.task.tier) if name not in sent]
        return {"withheld": withheld} if withheld else {}

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

    def restored(self, net: FlatNet, client: Client) -> bool:
        """After divergence, with the last finite parameters back in the net: whether the client still contributes."""
        return True

    def adapt(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> None:
        """What a client does to the net that `narrow` and `restore` have filled before it is tested on its own data."""

    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        """Names and shapes of what a client of this tier sends back, in this very task where tasks differ."""
        return self._net_specs[tier]

    def upload(self, net: FlatNet, client: Client) -> Params:
        """What the client sends back, as `upload_specs` says; views of the net are fine, they are copied at once."""
        return net.params

    def remember(self, net: FlatNet, client: Client) -> Params:
        """The client's new memory (only where `keeps_memory`), tensors of any shapes; empty: it keeps what it has."""
        return {}

    # What it would cost real clients.

    def download_bytes(self, tier: int) -> int:
        """Protocol bytes that a client of this tier receives in a round: 4 per parameter of its net."""
        return sum(spec.num_bytes for spec in self._net_specs[tier].values())

    def upload_bytes(self, tier: int) -> int:
        """Protocol bytes that it sends."""
        return self.download_bytes(tier)

    def planned_traffic(self, tier: int, round_number: int) -> tuple[int, int]:
        """Protocol bytes (down, up) of a client of this tier in this round, as far as a plan can know."""
        return self.download_bytes(tier), self.upload_bytes(tier)

    def traffic(self, net: FlatNet, client: Client) -> tuple[int, int]:
        """Protocol bytes (down, up) of this client in this phase, after its training; to override where clients of
        one tier differ."""
        return self.download_bytes(client.task.tier), self.upload_bytes(client.task.tier)

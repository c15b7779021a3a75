"""The base of methods that train adapters (`lowrank/adapter.py`) beside the linear layers of a frozen net.

Client i has A_i (r_i, in) and B_i (out, r_i) of a layer, and so changes its weight by s_i B_i A_i. What is trained
beside the adapters, as a head, is what `model.trained` names, and is averaged as in FedAvg.

A, B and the change of a weight are parts of a layer, `a`, `b` and `change`. A method says which parts its server
averages, which it sends, and which clients hold without training them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedmpi import seeds
from fedmpi.config.fields import MAX_TIERS, Count, Patterns, Positive
from fedmpi.federation.assignment import Task
from fedmpi.lowrank import spectrum
from fedmpi.lowrank.adapter import adapt, drawn, frozen_layers, other_layers
from fedmpi.lowrank.correction import TierCoverage
from fedmpi.methods.protocol import Method, copy_into
from fedmpi.methods.values import Client, ClientLoad, Contributions, Costs, MethodContext, WeightedOptions
from fedmpi.tensors import Params, Spec

MAX_RANK = 2**31 - 1
_SHOWN = 3
Ranks = Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=MAX_TIERS)]


class AdapterOptions(WeightedOptions):
    uploads_nets: ClassVar[bool] = False
    adds_parameters: ClassVar[bool] = True
    capacity: ClassVar[str] = "ranks"
    ranks: Ranks = (16, 8, 4, 2)
    """Rank of each tier's adapters, largest first; at most the smaller side of a layer."""
    alpha: Positive = 16.0
    """Alpha of the scale of an adapter."""
    scale: Literal["standard", "rslora", "equal"] = "standard"
    """What multiplies an adapter of rank r: `standard` alpha / r, `rslora` alpha / sqrt(r), `equal` alpha / the largest
    rank, so that a prefix of A and B means the same to all tiers.
    """
    targets: Patterns = ("*",)
    """Name patterns (fnmatch), as ["*query"], of the linear layers that get adapters; `model.trained` must not name
    their weights.
    """


class Adapters(Method):
    """Each averaged part <- the mean of what clients have of it; smaller factors are padded with zeros."""

    options: AdapterOptions
    averages: ClassVar[Sequence[str]] = ("a", "b")
    sends: ClassVar[Sequence[str]] = ("a", "b")
    holds: ClassVar[Sequence[str]] = ()
    band_power: ClassVar[int] = 2
    """A round without training multiplies ranks that clients with a share c of the weight hold by this power of c."""

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        self.layers = frozen_layers(context.make(empty=True), self.options.targets)
        self.own_decay = [f"{layer}.{part}" for layer in self.layers for part in self.holds]

    def rank(self, layer: str, tier: int) -> int:
        """Returns r of a layer in the net of a tier; tier 0 has the largest."""
        return min(self.options.ranks[tier], *self.layers[layer].matrix_shape)

    def scale(self, tier: int) -> float:
        """Returns s."""
        r = self.options.ranks[0 if self.options.scale == "equal" else tier]
        return self.options.alpha / (r**0.5 if self.options.scale == "rslora" else r)

    def part_specs(self, *parts: str) -> dict[str, Spec]:
        """Returns names and shapes of these parts of all layers, factors at the largest rank."""
        specs: dict[str, Spec] = {}
        for name, layer in self.layers.items():
            r = self.rank(name, 0)
            shapes = {"a": (r, layer.in_features), "b": (layer.out_features, r)}
            shapes["change"] = (layer.out_features, layer.in_features)
            specs |= {f"{name}.{part}": Spec(shapes[part]) for part in parts}
        return specs

    @cached_property
    def start(self) -> Params:
        """Draws A out of the seed; B is zero."""
        generator = seeds.torch_generator("adapters", self.context.seed)
        values = {name: drawn(spec.shape, generator) for name, spec in self.part_specs("a").items()}
        return values | {name: torch.zeros(spec.shape) for name, spec in self.part_specs("b").items()}

    def warnings(self) -> tuple[str, ...]:
        said = []
        if others := other_layers(self.context.make(empty=True), self.options.targets):
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            said.append(f"method.targets: no adapters beside {', '.join(others[:_SHOWN])}{more}")
        scales = [f"{self.scale(tier.index):g}" for tier in self.tiers]
        if "b" in self.averages and len({*scales}) > 1:
            why = "but B is averaged for itself; method.scale=equal gives all one scale"
            said.append(f"method.scale: the tiers' adapters are multiplied by {', '.join(scales)}, {why}")
        return tuple(said)

    def state_specs(self) -> dict[str, Spec]:
        return self.model_specs | self.part_specs(*self.averages)

    def initial_state(self) -> Params:
        return {name: self.start.get(name, value).clone() for name, value in super().initial_state().items()}

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        return self.model_specs | self.part_specs(*self.sends)

    def publish(self, state: Params, nets: Collection[int], out: Params) -> None:
        copy_into(out, self.start | state)

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        """Yields what was trained, factors padded with zeros, and, where changes are averaged, s B A of each layer."""
        for name, spec in self.state_specs().items():
            if name in upload:
                yield name, padded(upload[name], spec.shape)
        for layer in self.layers if "change" in self.averages else ():
            for suffix, ranks in self.terms(layer, client.task.tier):
                yield f"{layer}.change{suffix}", self.product(upload, layer, client.task.tier, ranks)

    def terms(self, layer: str, tier: int) -> Iterator[tuple[str, slice]]:
        """Yields what a client adds to sums of changes: the end of the sum's name, and which of its ranks."""
        yield "", slice(None)

    def product(self, factors: Params, layer: str, tier: int, ranks: slice = slice(None)) -> Tensor:
        """Returns s B A of some ranks of a layer, (out, in)."""
        return self.scale(tier) * (factors[f"{layer}.b"][:, ranks] @ factors[f"{layer}.a"][ranks])

    def magnitudes(self, upload: Params, client: Client) -> Tensor:
        """Bounds changes by the norms of the factors: |B A|_ij <= |b_i| |a_j|, of any ranks."""
        bounds = dict(upload)
        for layer in self.layers if "change" in self.averages else ():
            rows = upload[f"{layer}.b"].norm(dim=1).max()
            columns = upload[f"{layer}.a"].norm(dim=0).max()
            bounds[f"{layer}.change"] = self.scale(client.task.tier) * rows * columns
        return super().magnitudes(bounds, client)

    def costs(self, turn: ClientLoad) -> Costs:
        """Counts what is trained, both ways; where changes are sent, as the adapters that they are made of, for a
        client that takes part in every round and so lacks those of the last one only."""
        costs = super().costs(turn)
        down = costs.up_bytes
        if "change" in self.sends:
            down += self.stack_bytes
        if "a" not in self.sends:
            down -= self.factor_bytes(turn.tier)
        return replace(costs, down_bytes=down)

    def factor_bytes(self, tier: int, most: int = MAX_RANK) -> int:
        """Returns the bytes of a tier's A and B, of at most so many ranks."""
        return 4 * sum(min(most, self.rank(name, tier)) * sum(own.matrix_shape) for name, own in self.layers.items())

    @cached_property
    def stack_bytes(self) -> int:
        """Returns the bytes of A and B of all clients of a round, on average over rounds."""
        blocks = self.context.tier_blocks or (1,) * len(self.tiers)
        total = sum(count * self.factor_bytes(tier) for tier, count in enumerate(blocks))
        return round(self.context.clients.per_round * total / sum(blocks))

    def diagnostics(self, state: Params, published: Params, contributions: Contributions) -> Mapping[str, object]:
        """Returns the share of the adapters' energy beyond each tier's rank, and by tier the factor by which a round
        without training multiplies the ranks that it has and smaller ones have not."""
        if "a" not in self.sends:
            return {}  # all tiers have all
        held = [(self.tiers[task.tier].capacity, self.untrained_weight(state, task)) for task in contributions.tasks]
        cover = TierCoverage.from_clients(held)
        notes: dict[str, object] = {}
        shares = {tier.name: cover.share_at(tier.capacity) for tier in self.tiers}
        notes["band_factor"] = {name: spectrum.rounded(share**self.band_power) for name, share in shares.items()}
        spectra = {layer: self.singular_values(state, layer) for layer in self.layers}
        ranks: dict[str, dict[str, int]] = {}
        for tier in self.tiers:
            ranks[tier.name] = {layer: self.rank(layer, tier.index) for layer in self.layers}
        return notes | spectrum.notes_of(spectrum.table(spectra, ranks), [*ranks], "what the adapters change")

    def untrained_weight(self, state: Params, task: Task) -> float:
        """Returns what `client_weight` would be, were the client's adapters the state's."""
        return self.client_weight(task)

    def singular_values(self, state: Params, layer: str) -> Tensor:
        """Returns those of the change of a weight that the adapters of the largest tier are made of, largest first.

        B A has those of R_B R_A^T, where B = Q_B R_B and A^T = Q_A R_A: a matrix of the side r.
        """
        factors = self.start | state
        right = torch.linalg.qr(factors[f"{layer}.a"].double().t()).R
        left = torch.linalg.qr(factors[f"{layer}.b"].double()).R
        return self.scale(0) * torch.linalg.svdvals(left @ right.t())

    def net(self, number: int, *, empty: bool = False) -> nn.Module:
        ranks = {layer: self.rank(layer, number) for layer in self.layers}
        return adapt(self.context.make(empty=empty), ranks, self.scale(number), self.holds, empty=empty)

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        """Copies the leading r rows of A and columns of B, and the rest whole."""
        for name, target in out.items():
            target.copy_(published[name][tuple(map(slice, target.shape))])

    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        return {name: spec for name, spec in self.tier_specs[tier].items() if name not in self.own_decay}


def padded(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns a tensor of this shape that begins with `value` and has zeros beyond."""
    if value.shape == shape:
        return value
    whole = value.new_zeros(shape)
    whole[tuple(map(slice, value.shape))] = value
    return whole

"""What is ours in `fedhm`: `aggregation: delta`, and server optimizers on low-rank updates. No method's paper has this.

The paper's mean (`fedhm.py`) takes the truncation of a weight for a change: in time all tiers have one net
(`RANK_COLLAPSE.md`). With `aggregation: delta` the server keeps W and adds the mean of what clients changed;
`lowrank/correction.py` has what holds exactly. A server optimizer (`fedopt.py`) steps along the same mean change.

Where no client is ever dense, the server changes U V^T instead of W: what lies beyond all ranks would stay as the
random start has left it, where no client can change it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from torch import Tensor

from fedmpi.config.fields import ShareOrZero
from fedmpi.config.schema import Config
from fedmpi.federation.assignment import Task
from fedmpi.federation.tiers import Tier
from fedmpi.lowrank import correction, spectrum
from fedmpi.lowrank.correction import TierCoverage
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.methods.fedhm import FedHM, FedHMOptions
from fedmpi.methods.fedopt import Mean
from fedmpi.methods.values import Client, Contributions, MethodContext
from fedmpi.tensors import Params, Spec


class FedHMDeltaOptions(FedHMOptions):
    name: str = "fedhm"
    """Low-rank factorized nets by capacity, lifted and averaged (Yao et al. 2021)."""
    aggregation: Literal["paper", "delta"] = "paper"
    """`paper`: the mean of eq. 2, which in time leaves all tiers the smallest one's net. `delta`: the server keeps what
    clients did not get, and adds the mean of what they changed."""
    residual: ShareOrZero = 1.0
    """Share of what clients did not get that the server keeps (`delta`); 0 is the paper's mean."""
    coverage: ShareOrZero = 0.0
    """How much `delta` raises an entry that only some clients can change: a change that clients with a share c of the
    weight could make counts 1 / c to this power. 0 is the mean over all clients, 1 that over those which cover it."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.aggregation == "delta" and not isinstance(self.server, Mean):
            takes = f"{self.server.name} steps along the mean change, as delta does; leave method.aggregation out"
            yield "method.server.name", takes
        todo = "with method.aggregation=paper nothing is corrected; set it to delta, or leave this out"
        if self.aggregation == "paper" and self.residual != 1:
            yield "method.residual", f"{self.residual:g}, but {todo}"
        if self.aggregation == "paper" and self.coverage != 0:
            yield "method.coverage", f"{self.coverage:g}, but {todo}"
        elif self.coverage > 0 and self.residual < 1:
            yield ("method.coverage", f"{self.coverage:g} needs method.residual=1, not {self.residual:g}; allowed: 0")


class FedHMDelta(FedHM):
    """The paper's method, whose server can keep W and add what clients changed."""

    Options: ClassVar[type[FedHMDeltaOptions]] = FedHMDeltaOptions
    options: FedHMDeltaOptions

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        self._is_delta = self.options.aggregation == "delta"
        is_paper = not self._is_delta and isinstance(self.options.server, Mean)
        blocks = self.context.tier_blocks or (1,) * len(self.tiers)
        tiers = self.context.tiers_in_use or [tier for tier, count in enumerate(blocks) if count]
        has_dense_clients = any(self._is_dense(tier) for tier in tiers)
        self._starts_from_factors = not (is_paper or has_dense_clients)

    def sums(self) -> Mapping[str, str]:
        """Names a sum for each tier where `coverage` weighs the changes of each tier by themselves."""
        return {self._sum(name, tier.index): name for name in self.state_specs() for tier in self.tiers}

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        specs = super().published_specs(nets)
        if not self._starts_from_factors:
            return specs
        # All triplets that some tier has, whatever nets are asked for.
        return specs | self._factor_specs(max(tier.capacity for tier in self.tiers if tier.capacity < 1))

    def _sum(self, name: str, tier: int) -> str:
        return f"{name}..{tier}" if self.options.coverage and name.removesuffix(".weight") in self.layers else name

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        for name, value in super().lift(upload, client):
            yield self._sum(name, client.task.tier), value

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Returns eq. 2, or where `aggregation` is `delta` W and the mean of what clients changed of it."""
        if not self._is_delta:  # with a server optimizer by `mean_change`
            layers = self.layers.values() if self._starts_from_factors else ()
            start = {f"{layer.name}.weight": self._product(layer, state, contributions.published) for layer in layers}
            return super().update(state | start, means, contributions)
        new = {name: means.get(name, value) for name, value in state.items()}
        for layer in self.layers.values():
            name = f"{layer.name}.weight"
            new[name] = layer.folded_as(state[name], self._corrected(layer, state[name], means, contributions))
        return new

    def _product(self, layer: FactorizedLayer, state: Params, published: Params) -> Tensor:
        """Returns the weight of a factorized layer as the published factors give it."""
        weight = state[f"{layer.name}.weight"]
        u, v = self._factors(layer, published, weight)
        return layer.folded_as(weight, u.double() @ v.double())

    def _corrected(self, layer: FactorizedLayer, weight: Tensor, means: Params, contributions: Contributions) -> Tensor:
        """Returns W+ of a layer, unrolled, float64."""
        options = self.options
        cover = self._cover(layer, contributions.tasks)
        if not cover.share_by_rank:  # all dense
            return self._mean(layer, means)
        matrix = layer.unroll(weight)
        (u, v) = self._factors(layer, contributions.published, weight)
        kept = None if self._starts_from_factors else matrix
        if not options.coverage:
            untouched = correction.untouched(kept, u, v, cover)
            return untouched.mul_(options.residual).add_(self._mean(layer, means))
        sums: dict[int | None, Tensor] = {}
        for tier in sorted({task.tier for task in contributions.tasks}):
            r = self._rank(layer, tier)
            part = layer.unroll(means[self._sum(f"{layer.name}.weight", tier)])
            sums[r] = sums[r] + part if r in sums else part
        change = correction.covered_change(sums, matrix, u, v, cover, options.coverage)
        return change.add_(u.double() @ v.double() if kept is None else kept)

    def mean_change(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Returns what clients have changed, on average: the gradient of a server optimizer, negated. Of a factorized
        layer it is the mean without what clients started from, because a truncation is no change."""
        changes = {name: means[name] - state[name] for name in self.state_specs()}
        for layer in self.layers.values():
            name = f"{layer.name}.weight"
            cover = self._cover(layer, contributions.tasks)
            factors = self._factors(layer, contributions.published, state[name]) if cover.share_by_rank else None
            change = self._mean(layer, means) - correction.received(layer.unroll(state[name]), factors, cover)
            changes[name] = layer.folded_as(state[name], change)
        return changes

    def _cover(self, layer: FactorizedLayer, tasks: Sequence[Task]) -> TierCoverage:
        return TierCoverage.from_clients((self._rank(layer, task.tier), self.client_weight(task)) for task in tasks)

    def _mean(self, layer: FactorizedLayer, means: Params) -> Tensor:
        """Returns the mean of eq. 2, unrolled, float64; out of its parts if it was summed by tier."""
        parts = dict.fromkeys(self._sum(f"{layer.name}.weight", tier.index) for tier in self.tiers)
        first, *others = (layer.unroll(means[name]).double() for name in parts)
        return sum(others, first)

    def _band_factor(self, cover: TierCoverage, tier: Tier) -> float:
        is_mean = isinstance(self.options.server, Mean)
        kept = self.options.residual if self._is_delta else float(not is_mean)
        return spectrum.rounded(kept + (1 - kept) * cover.share_at(tier.capacity))

"""FedHM: clients train low-rank factorized nets of their capacity, the server lifts and averages them.

D. Yao, W. Pan, M. J. O'Neill, Y. Dai, Y. Wan, H. Jin, L. Sun: FedHM: Efficient Federated Learning for Heterogeneous
Models via Low-rank Factorization, arXiv:2111.14655. Algorithm 1; eq. 1 (lift), eq. 2 (weights alpha_p = softmax(gamma_p
/ tau)), section 2.2 (factorization, Frobenius decay).

Server state: the dense model. Each round it factorizes every low-rank layer once, at the largest rank any tier needs; a
tier's factors are the leading r columns (singular triplets are nested), so the cost does not grow with the number of
tiers. A client of rank ratio 1 gets the dense model.

Differences from the paper, and from the authors' code (YXShi2000/FedHM @7540928):
- r = max(1, round(gamma n)) with n the layer's outputs, as in the code and the paper's parameter counts; the text's
  gamma = rank(U V^T) / rank(W) would give other sizes.
- A conv is unrolled to (m k) x (n k), k x 1 kernels first, as in the paper; `unroll: code` gives the code's (n k) x (m
  k), 1 x k first, a different approximation of the same size.
- alpha is the paper's softmax(gamma / tau), tau = 5 for dynamic tiers and infinite (uniform) for fixed ones; the code's
  softmax(-1 / (gamma tau)), its pseudo-client and its unnormalized class rows are not followed.
- Frobenius decay replaces weight decay on the factors; `plus_l2` adds the latter as the code does.
- The un-factorized layers are the code's (3 in ResNet-18, 15 in ResNet-34), which the paper's parameter counts confirm;
  its text says 2 and 15.

The paper's mean, the default, in time leaves all tiers one net: `RANK_COLLAPSE.md` has why. `aggregation: delta` is
ours: the server keeps W and adds the mean of what clients changed; `lowrank/correction.py` has what holds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from fedmpi.config.fields import NotNegative, Shares
from fedmpi.config.schema import Config
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.lowrank import correction, spectrum
from fedmpi.lowrank.correction import Cover, received
from fedmpi.lowrank.decay import decay_layers_
from fedmpi.lowrank.factorized import FactorizedLayer, dense_name
from fedmpi.lowrank.modules import factorize_net
from fedmpi.lowrank.publishing import PublishedFactors
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.methods.fedopt import Mean, ServerMethod, ServerOptions
from fedmpi.methods.values import Client, Contributions, LayerRank, MethodContext, Traits
from fedmpi.methods.widths import larger_than_dense, with_open_lstms
from fedmpi.tensors import Params, Spec, max_magnitudes

# Below, exp((gamma - 1) / tau) underflows; the weights have long been all on the largest tier.
Temperature = Annotated[float, Field(ge=0.002)]
Share = Annotated[float, Field(ge=0, le=1)]


class FedHMOptions(ServerOptions):
    """Options of `fedhm`."""

    capacity: ClassVar[str] = "rank_ratio"
    shares_factors: ClassVar[bool] = True
    name: str = "fedhm"
    """Low-rank factorized nets by capacity, lifted and averaged (Yao et al. 2021)."""
    rank_ratio: Shares = (1.0, 0.5, 0.25, 0.125)
    """Gamma of each tier, largest first; 1 is the dense model. One value for all is the papers' "low rank model"."""
    tau: Temperature | Literal["auto"] = "auto"
    """Temperature of the weights softmax(gamma / tau); `.inf` is uniform. `auto`: 5 for dynamic tiers, else `.inf`."""
    dense_layers: Annotated[int, Field(ge=0, le=2**31 - 1)] | Literal["auto"] = "auto"
    """Rho: how many leading convolutions stay dense, stem included; `auto` asks the model (ResNet-18: 3; -34: 15)."""
    layer_ranks: dict[str, LayerRank] = {}
    """Exceptions by layer name pattern (`layer4.*`): `dense`, a rank ratio below 1, or a rank as a whole number."""
    unroll: Literal["paper", "code"] = "paper"
    """How a kernel becomes a matrix: (m k) x (n k) with k x 1 kernels first, or (n k) x (m k) with 1 x k first."""
    frobenius_decay: NotNegative | Literal["auto"] = "auto"
    """Lambda of lambda/2 |U V^T|_F^2 on factorized layers; `auto` is `train.weight_decay`."""
    plus_l2: bool = False
    """Weight decay on the factors too, as the authors' code does."""
    solver: Literal["gram", "exact"] = "gram"
    """`gram`: by the float64 eigenvectors of the Gram matrix, nearest to the optimum; `exact`: LAPACK's float32 SVD."""
    aggregation: Literal["paper", "delta"] = "paper"
    """`paper`: the mean of eq. 2, which in time leaves all tiers the smallest one's net. `delta`: the server keeps what
    clients did not get, and adds the mean of what they changed."""
    residual: Share = 1.0
    """Share of what clients did not get that the server keeps (`delta`); 0 is the paper's mean."""
    coverage: Share = 0.0
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


class FedHM(ServerMethod):
    """One SVD per layer and round on the server; prefixes of its factors on the clients."""

    Options = FedHMOptions
    options: FedHMOptions
    traits = Traits(
        publishing_is="svd",
        why_equal="fedhm factorizes no layer of this net, or all to the same r; see method.dense_layers and "
        "method.layer_ranks",
    )

    def __init__(self, context: MethodContext) -> None:
        super().__init__(with_open_lstms(context))
        options = self.options
        dense = context.dense_layers if options.dense_layers == "auto" else options.dense_layers
        rule = Rule(dense_layers=dense, unroll=options.unroll, overrides=options.layer_ranks)
        self.layers = {layer.name: layer for layer in plan_layers(self.context.make(empty=True), rule)}
        self.lambda_ = context.train.weight_decay if options.frobenius_decay == "auto" else options.frobenius_decay
        own_decay = [] if options.plus_l2 else [name for layer in self.layers.values() for name in layer.factor_names]
        sums = {self._sum(name, tier.index): name for name in self.state_specs() for tier in self.tiers}
        self.traits = replace(
            self.traits,
            own_decay=own_decay,
            sums=sums if options.coverage else {},  # to weigh the changes of each tier by themselves
            factors=self.factorization,
        )

    def warnings(self) -> tuple[str, ...]:
        ratios, layers = self.options.rank_ratio, self.layers.values()
        dense = self.context.make(empty=True)
        return larger_than_dense("method.rank_ratio", ratios, dense, layers, lambda layer, ratio: (layer.r(ratio),))

    def _is_dense(self, tier: int) -> bool:
        return self.tiers[tier].capacity == 1

    @cached_property
    def _has_dense_clients(self) -> bool:
        """Whether any client ever trains the dense model."""
        blocks = self.context.tier_blocks or (1,) * len(self.tiers)
        return any(self._is_dense(tier) and count for tier, count in enumerate(blocks))

    @property
    def _starts_from_factors(self) -> bool:
        """Whether the server changes U V^T instead of W: what lies beyond all ranks would stay as the random start has
        left it, where no client can change it."""
        is_paper = self.options.aggregation == "paper" and isinstance(self.options.server, Mean)
        return not (is_paper or self._has_dense_clients)

    # Server half.

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        specs = self.state_specs()
        # `delta` without dense clients keeps all triplets that some tier has, whatever nets are asked for.
        asked = range(len(self.tiers)) if self._starts_from_factors else nets
        ratio = max((self.tiers[net].capacity for net in asked if not self._is_dense(net)), default=None)
        if ratio is None:
            return specs
        if not any(map(self._is_dense, nets)):
            specs = {name: spec for name, spec in specs.items() if name.removesuffix(".weight") not in self.layers}
        return specs | self.factorization.specs(ratio)

    @cached_property
    def factorization(self) -> PublishedFactors:
        """How this server factorizes its layers."""
        return PublishedFactors(self.layers, self.options.solver)

    def publish(self, state: Params, nets: Collection[int], out: Params) -> None:
        """Algorithm 1, lines 3-4, once for all tiers: `out` gets the factors at the largest rank and the dense rest."""
        for name in [name for name in state if name in out]:
            out[name].copy_(state[name])
        if self.factorization.is_in(out):
            self.factorization.write(state, out)

    def client_weight(self, task: Task) -> float:
        """Eq. 2 without its denominator, which is common to the cohort."""
        tau = self.options.tau
        if tau == "auto":
            tau = 5.0 if self.context.clients.tier_assignment == "dynamic" else math.inf
        return math.exp((self.tiers[task.tier].capacity - 1.0) / tau)

    def _sum(self, name: str, tier: int) -> str:
        return f"{name}@{tier}" if self.options.coverage and name.removesuffix(".weight") in self.layers else name

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        """Eq. 1: W = U V^T, folded back into a kernel."""
        tier = client.task.tier
        for name, value in upload.items():
            layer = self.layers.get(name.removesuffix(".u.weight"))
            if layer is not None and name.endswith(".u.weight"):
                yield self._sum(f"{layer.name}.weight", tier), layer.lifted(value, upload[f"{layer.name}.v.weight"])
            elif name.removesuffix(".v.weight") not in self.layers:
                yield self._sum(dense_name(name, self.layers), tier), value

    def magnitudes(self, upload: Params, client: Client) -> Tensor:
        """|U V^T|_ij <= |u_i| |v_j|: the largest row norms bound a lifted layer without lifting it."""
        bounds = {dense_name(name, self.layers): value for name, value in upload.items()}
        for layer in self.layers.values() if not self._is_dense(client.task.tier) else ():
            u, v = layer.factor_names
            rows = layer.u_matrix(upload[u]).norm(dim=1).max(), layer.v_matrix(upload[v]).norm(dim=0).max()
            bounds[f"{layer.name}.weight"] = rows[0] * rows[1]
        return max_magnitudes([bounds[name] for name in self.state_specs()])

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Eq. 2, or where `aggregation` is `delta` W and the mean of what clients changed of it."""
        if self.options.aggregation == "paper":  # with a server optimizer by `mean_change`
            layers = self.layers.values() if self._starts_from_factors else ()
            start = {f"{layer.name}.weight": self._product(layer, state, contributions.published) for layer in layers}
            return super().update(state | start, means, contributions)
        new = {name: means.get(name, value) for name, value in state.items()}
        for layer in self.layers.values():
            name = f"{layer.name}.weight"
            new[name] = layer.folded_as(state[name], self._corrected(layer, state[name], means, contributions))
        return new

    def _product(self, layer: FactorizedLayer, state: Params, published: Params) -> Tensor:
        """The weight of a factorized layer as the published factors give it."""
        weight = state[f"{layer.name}.weight"]
        u, v = self._factors(layer, published, weight)
        return layer.folded_as(weight, u.double() @ v.double())

    def _corrected(self, layer: FactorizedLayer, weight: Tensor, means: Params, contributions: Contributions) -> Tensor:
        """W+ of a layer, unrolled, float64."""
        options, cover = self.options, self._cover(layer, contributions.tasks)
        if not cover.of:  # all dense
            return self._mean(layer, means)
        matrix, (u, v) = layer.unroll(weight), self._factors(layer, contributions.published, weight)
        kept = None if self._starts_from_factors else matrix
        if not options.coverage:
            untouched = correction.untouched(kept, u, v, cover)
            return untouched.mul_(options.residual).add_(self._mean(layer, means))
        sums: dict[int | None, Tensor] = {}
        for tier in sorted({task.tier for task in contributions.tasks}):
            r, part = self._rank(layer, tier), layer.unroll(means[self._sum(f"{layer.name}.weight", tier)])
            sums[r] = sums[r] + part if r in sums else part
        change = correction.covered_change(sums, matrix, u, v, cover, options.coverage)
        return change.add_(u.double() @ v.double() if kept is None else kept)

    def mean_change(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """What clients have changed, on average: the gradient of a server optimizer, negated. Of a factorized layer it
        is the mean without what clients started from, because a truncation is no change."""
        changes = {name: means[name] - state[name] for name in self.state_specs()}
        for layer in self.layers.values():
            name, cover = f"{layer.name}.weight", self._cover(layer, contributions.tasks)
            factors = self._factors(layer, contributions.published, state[name]) if cover.of else None
            change = self._mean(layer, means) - received(layer.unroll(state[name]), factors, cover)
            changes[name] = layer.folded_as(state[name], change)
        return changes

    def _rank(self, layer: FactorizedLayer, tier: int) -> int | None:
        return None if self._is_dense(tier) else layer.r(self.tiers[tier].capacity)

    def _cover(self, layer: FactorizedLayer, tasks: Sequence[Task]) -> Cover:
        return Cover.by((self._rank(layer, task.tier), self.client_weight(task)) for task in tasks)

    def _factors(self, layer: FactorizedLayer, published: Params, like: Tensor) -> tuple[Tensor, Tensor]:
        """U (M, r) and V (r, N) as clients got them, where the server computes."""
        u, v = (published[name].to(like.device) for name in layer.factor_names)
        return layer.u_matrix(u), layer.v_matrix(v)

    def _mean(self, layer: FactorizedLayer, means: Params) -> Tensor:
        """The mean of eq. 2, unrolled, float64; out of its parts if it was summed by tier."""
        parts = dict.fromkeys(self._sum(f"{layer.name}.weight", tier.index) for tier in self.tiers)
        first, *others = (layer.unroll(means[name]).double() for name in parts)
        return sum(others, first)

    # What it tells of a round.

    def diagnostics(self, state: Params, published: Params, contributions: Contributions) -> Mapping[str, object]:
        """Where the energy of the factorized layers lies, and by tier the factor c by which this round's mean alone,
        without training, shrinks the singular values that the tier has and smaller ones have not."""
        weighted = [(self.tiers[task.tier].capacity, self.client_weight(task)) for task in contributions.tasks]
        cover = Cover.by((None if ratio == 1 else ratio, weight) for ratio, weight in weighted)
        is_mean = isinstance(self.options.server, Mean)
        kept = self.options.residual if self.options.aggregation == "delta" else float(not is_mean)
        factors = {t.name: spectrum.digits(kept + (1 - kept) * cover.at(t.capacity)) for t in self.tiers}
        spectra = self.factorization.spectra(published)
        if not spectra:
            return {"band_factor": factors}
        notes: dict[str, object] = {"band_factor": factors, "spectrum": self._spectrum(state, published, spectra)}
        said = spectrum.conclusions(notes, self.tiers[-1].name) if len(self.tiers) > 1 else []
        return {**notes, "conclusions": said} if said else notes

    def _spectrum(self, state: Params, published: Params, spectra: Params) -> Mapping[str, object]:
        """The energy of each factorized layer, and that of what training has made of its start."""
        changes = {}
        for name, layer in self.layers.items():
            weight = state[f"{name}.weight"]
            u, _ = self._factors(layer, published, weight)
            changes[name] = spectrum.along(layer.unroll(weight) - self._start[name].to(weight.device), u)
        low, layers = [tier for tier in self.tiers if tier.capacity < 1], self.layers.items()
        ranks = {tier.name: {name: layer.r(tier.capacity) for name, layer in layers} for tier in low}
        return spectrum.table(spectra, ranks, changes)

    @cached_property
    def _start(self) -> Params:
        """The matrix of each factorized layer before round 1. The seed makes it again, so no checkpoint has it."""
        state = self.initial_state()
        return {name: layer.unroll(state[f"{name}.weight"]).clone() for name, layer in self.layers.items()}

    # Client half.

    def net(self, number: int, *, empty: bool = False) -> nn.Module:
        return factorize_net(self.context.make(empty=empty), self.layers.values(), self.tiers[number].capacity)

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        """The leading r columns of each factor, and the dense rest whole."""
        for name, target in out.items():
            source = published[name if name in published else dense_name(name, self.layers)]
            target.copy_(source[tuple(map(slice, target.shape))])  # singular triplets are nested

    def after_backward(self, net: FlatNet, client: Client) -> None:
        """Frobenius decay: the gradient of lambda/2 |U V^T|_F^2 on every factorized layer."""
        if not self._is_dense(client.task.tier):
            decay_layers_(self.layers.values(), net.params, net.grads, self.lambda_)

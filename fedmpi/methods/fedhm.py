"""FedHM: clients train low-rank factorized nets of their capacity, the server lifts and averages them.

D. Yao, W. Pan, M. J. O'Neill, Y. Dai, Y. Wan, H. Jin, L. Sun: FedHM: Efficient Federated Learning for Heterogeneous
Models via Low-rank Factorization, arXiv:2111.14655. Algorithm 1; eq. 1 (lift), eq. 2 (weights alpha_p = softmax(gamma_p
/ tau)), section 2.2 (factorization, Frobenius decay).

Server state: the dense model. Each round it factorizes every low-rank layer once, at the largest rank any tier needs; a
tier's factors are the leading r columns, so the cost does not grow with the number of tiers. A client of rank ratio 1
gets the dense model.

Differences from the paper, and from the authors' code (YXShi2000/FedHM @7540928):
- r = max(1, round(gamma n)) with n the layer's outputs, as in the code and the paper's parameter counts; the text's
  gamma = rank(U V^T) / rank(W) would give other sizes.
- A conv is unrolled to (m k) x (n k), k x 1 kernels first, as in the paper; `unroll: code` gives the code's (n k) x (m
  k), 1 x k first, a different approximation of the same size.
- alpha is the paper's softmax(gamma / tau), tau = 5 for dynamic tiers and infinite (uniform) for fixed ones; the code's
  softmax(-1 / (gamma tau)), its pseudo-client and its unnormalized class rows are not followed.
- Frobenius decay replaces weight decay on the factors; `plus_l2` adds the latter as the code does.
- Spectral initialization is the SVD of a dense start, as the server's of each round. Without it (`spectral_init`) the
  start is U V of random factors of the largest rank below the full one; the server's SVD still balances them.
- The un-factorized layers are the code's (3 in ResNet-18, 15 in ResNet-34), which the paper's parameter counts confirm;
  its text says 2 and 15.

The paper's mean in time leaves all tiers one net (`RANK_COLLAPSE.md`). `fedhm_delta.py` has what is ours.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedmpi import seeds
from fedmpi.config.fields import CountOrZero, NotNegative, Shares
from fedmpi.federation.assignment import Task
from fedmpi.federation.tiers import Tier
from fedmpi.lowrank import spectrum
from fedmpi.lowrank.correction import TierCoverage
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.modules import factorize_net
from fedmpi.lowrank.rule import Rule
from fedmpi.methods.factor_nets import FactorMethod
from fedmpi.methods.fedopt import ServerOptions
from fedmpi.methods.values import Client, Contributions, LayerRank, MethodContext
from fedmpi.tensors import Params, Spec

# Below, exp((gamma - 1) / tau) underflows; the weights have long been all on the largest tier.
Temperature = Annotated[float, Field(ge=0.002)]


class FedHMOptions(ServerOptions):
    uploads_nets: ClassVar[bool] = False
    capacity: ClassVar[str] = "rank_ratio"
    name: str = "fedhm"
    """Low-rank factorized nets by capacity, lifted and averaged (Yao et al. 2021)."""
    rank_ratio: Shares = (1.0, 0.5, 0.25, 0.125)
    """Gamma of each tier, largest first; 1 is the dense model. One value for all is the papers' "low rank model"."""
    tau: Temperature | Literal["auto"] = "auto"
    """Temperature of the weights softmax(gamma / tau); `.inf` is uniform. `auto`: 5 for dynamic tiers, else `.inf`."""
    dense_layers: CountOrZero | Literal["auto"] = "auto"
    """Rho: how many leading convolutions stay dense, stem included; `auto` asks the model (ResNet-18: 3; -34: 15)."""
    layer_ranks: dict[str, LayerRank] = {}
    """Exceptions by layer name pattern (`layer4.*`): `dense`, a rank ratio below 1, or a rank as a whole number."""
    unroll: Literal["paper", "code"] = "paper"
    """How a kernel becomes a matrix: (m k) x (n k) with k x 1 kernels first, or (n k) x (m k) with 1 x k first."""
    frobenius_decay: NotNegative | Literal["auto"] = "auto"
    """Lambda of lambda/2 |U V^T|_F^2 on factorized layers; `auto` is `train.weight_decay`."""
    spectral_init: bool = True
    """Begin with a dense start. `false`: with products of random factors, for an ablation."""
    plus_l2: bool = False
    """Weight decay on the factors too, as the authors' code does."""
    solver: Literal["gram", "exact"] = "gram"
    """`gram`: by the float64 eigenvectors of the Gram matrix, nearest to the optimum; `exact`: LAPACK's float32 SVD."""


class FedHM(FactorMethod):
    """One SVD per layer and round on the server; prefixes of its factors on the clients."""

    Options: ClassVar[type[FedHMOptions]] = FedHMOptions
    options: FedHMOptions

    def __init__(self, context: MethodContext) -> None:
        options = context.options
        assert isinstance(options, FedHMOptions)
        dense = context.dense_layers if options.dense_layers == "auto" else options.dense_layers
        rule = Rule(dense, options.unroll, options.layer_ranks, context.classifier())
        super().__init__(context, rule, options.frobenius_decay)
        self.layers = {layer.name: layer for layer in self.factorized}
        if options.plus_l2:
            self.own_decay = ()
        self.late = {layer.published_names: layer.cost for layer in self.factorized}

    def _is_dense(self, tier: int) -> bool:
        return self.tiers[tier].capacity == 1

    def _rank(self, layer: FactorizedLayer, tier: int) -> int | None:
        """Returns r of a layer in the net of a tier; None for the dense net."""
        return None if self._is_dense(tier) else layer.r(self.tiers[tier].capacity)

    # Server half.

    def initial_state(self) -> Params:
        values = super().initial_state()
        low = [tier for tier in range(len(self.tiers)) if not self._is_dense(tier)]
        if self.options.spectral_init or not low:
            return values
        generator = seeds.torch_generator("factors", self.context.seed)
        for layer in self.layers.values():
            r = layer.r(self.tiers[low[0]].capacity)
            rows, columns = layer.matrix_shape
            # Of the dense start's variance: that of the product is r times the variance of either factor, squared.
            spread = (values[f"{layer.name}.weight"].std() / r**0.5) ** 0.5
            u, v = (torch.randn(shape, generator=generator) for shape in ((rows, r), (r, columns)))
            values[f"{layer.name}.weight"] = layer.fold(spread * u @ (spread * v)).contiguous()
        return values

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        specs = self.state_specs()
        low = [self.tiers[net].capacity for net in nets if not self._is_dense(net)]
        if not low:
            return specs
        if len(low) == len(nets):
            specs = {name: spec for name, spec in specs.items() if name.removesuffix(".weight") not in self.layers}
        return specs | self._factor_specs(max(low))

    def _factor_specs(self, rank_ratio: float) -> dict[str, Spec]:
        specs: dict[str, Spec] = {}
        for layer in self.layers.values():
            specs |= layer.published_specs(rank_ratio)
        return specs

    def publish(self, state: Params, nets: Collection[int], out: Params) -> None:
        """Runs Algorithm 1, lines 3-4, once for all tiers: the factors at the largest rank and the dense rest."""
        for name in [name for name in state if name in out]:
            out[name].copy_(state[name])
        for layer in self.layers.values():
            layer.publish(state[f"{layer.name}.weight"], out, self.options.solver)

    def client_weight(self, task: Task) -> float:
        """Returns eq. 2 without its denominator, which is common to the cohort."""
        tau = self.options.tau
        if tau == "auto":
            tau = 5.0 if self.context.clients.tier_assignment == "dynamic" else math.inf
        return math.exp((self.tiers[task.tier].capacity - 1.0) / tau)

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        """Yields eq. 1: W = U V^T, folded back into a kernel."""
        for name, value in upload.items():
            layer = self.layers.get(name.removesuffix(".u.weight"))
            if layer is not None and name.endswith(".u.weight"):
                yield f"{layer.name}.weight", layer.lifted(value, upload[f"{layer.name}.v.weight"])
            elif name.removesuffix(".v.weight") not in self.layers:
                yield name, value

    def magnitudes(self, upload: Params, client: Client) -> Tensor:
        """Bounds a lifted layer by the largest row norms, without lifting it: |U V^T|_ij <= |u_i| |v_j|."""
        bounds = dict(upload)
        for layer in self.layers.values() if not self._is_dense(client.task.tier) else ():
            u, v = layer.factor_names
            rows = layer.u_matrix(upload[u]).norm(dim=1).max(), layer.v_matrix(upload[v]).norm(dim=0).max()
            bounds[f"{layer.name}.weight"] = rows[0] * rows[1]
        return super().magnitudes(bounds, client)

    def _factors(self, layer: FactorizedLayer, published: Params, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns U (M, r) and V (r, N) as clients got them, where the server computes."""
        u, v = (published[name].to(like.device) for name in layer.factor_names)
        return layer.u_matrix(u), layer.v_matrix(v)

    # What it tells of a round.

    def diagnostics(self, state: Params, published: Params, contributions: Contributions) -> Mapping[str, object]:
        """Returns where the energy of the factorized layers lies, and by tier the factor c by which this round's mean
        alone, without training, shrinks the singular values that the tier has and smaller ones have not."""
        held = [(self.tiers[task.tier].capacity, self.client_weight(task)) for task in contributions.tasks]
        cover = TierCoverage.from_clients(held)
        notes: dict[str, object] = {"band_factor": {tier.name: self._band_factor(cover, tier) for tier in self.tiers}}
        sigma = {name: layer.published_names[-1] for name, layer in self.layers.items()}
        if spectra := {name: published[sigma[name]].cpu() for name in sigma if sigma[name] in published}:
            table = self._spectrum(state, published, spectra)
            notes |= spectrum.notes_of(table, [tier.name for tier in self.tiers])
        return notes

    def _band_factor(self, cover: TierCoverage, tier: Tier) -> float:
        return spectrum.rounded(cover.share_at(tier.capacity))

    def _spectrum(self, state: Params, published: Params, spectra: Params) -> dict[str, Any]:
        """Returns the energy of each factorized layer, and that of what training has made of its start."""
        changes = {}
        for name, layer in self.layers.items():
            weight = state[f"{name}.weight"]
            u, _ = self._factors(layer, published, weight)
            changes[name] = spectrum.energy_outside(layer.unroll(weight) - self._start[name].to(weight.device), u)
        ranks = {tier.name: self.ranks(tier.capacity) for tier in self.tiers if tier.capacity < 1}
        return spectrum.table(spectra, ranks, changes)

    @cached_property
    def _start(self) -> Params:
        """Makes the matrix of each factorized layer before round 1 out of the seed, so no checkpoint has it."""
        state = self.initial_state()
        return {name: layer.unroll(state[f"{name}.weight"]).clone() for name, layer in self.layers.items()}

    # Client half.

    def net(self, number: int, *, empty: bool = False) -> nn.Module:
        return factorize_net(self.context.make(empty=empty), self.layers.values(), self.tiers[number].capacity)

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        """Copies the leading r columns of each factor, and the dense rest whole."""
        for name, target in out.items():
            target.copy_(published[name][tuple(map(slice, target.shape))])  # singular triplets are nested

"""FedHM: clients train low-rank factorized nets of their capacity, the server lifts and averages them.

D. Yao, W. Pan, M. J. O'Neill, Y. Dai, Y. Wan, H. Jin, L. Sun: FedHM: Efficient Federated Learning
for Heterogeneous Models via Low-rank Factorization, arXiv:2111.14655. Algorithm 1; eq. 1 (lift),
eq. 2 (weights alpha_p = softmax(gamma_p / tau)), section 2.2 (factorization, Frobenius decay).

Server state: the dense model. Each round it factorizes every low-rank layer once, at the largest
rank any tier needs; a tier's factors are the leading r columns (singular triplets are nested), so
the cost does not grow with the number of tiers. A client of rank ratio 1 gets the dense model.

Differences from the paper, and from the authors' code (YXShi2000/FedHM @7540928):
- r = max(1, round(gamma n)) with n the layer's outputs, as in the code and the paper's parameter
  counts; the text's gamma = rank(U V^T) / rank(W) would give other sizes.
- A conv is unrolled to (m k) x (n k), k x 1 kernels first, as in the paper; `unroll: code` gives
  the code's (n k) x (m k), 1 x k first, a different approximation of the same size.
- alpha is the paper's softmax(gamma / tau), tau = 5 for dynamic tiers and infinite (uniform) for
  fixed ones; the code's softmax(-1 / (gamma tau)), its pseudo-client and its unnormalized
  class rows are not followed.
- Frobenius decay replaces weight decay on the factors; `plus_l2` adds the latter as the code does.
- The un-factorized layers are the code's (3 in ResNet-18, 15 in ResNet-34), which the paper's
  parameter counts confirm; its text says 2 and 15.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedmpi import lowrank
from fedmpi.config.schema import NotNegative, Shares
from fedmpi.federation.assignment import Task
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import Client, LayerRank, MethodContext, MethodOptions, Traits
from fedmpi.methods.widths import larger_than_dense, with_open_lstms

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedmpi.learning.flat import FlatNet
    from fedmpi.tensors import Params, Spec

# Below, exp((gamma - 1) / tau) underflows; the weights have long been all on the largest tier.
Temperature = Annotated[float, Field(ge=0.002)]


class FedHMOptions(MethodOptions):
    """Options of `fedhm`."""

    capacity: ClassVar[str] = "rank_ratio"
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
    """`gram`: by the float64 eigenvectors of the Gram matrix, nearer to the optimum; `exact`: LAPACK's float32 SVD."""


class FedHM(Method):
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
        rule = lowrank.rule.Rule(dense_layers=dense, unroll=options.unroll, overrides=options.layer_ranks)
        planned = lowrank.rule.plan_layers(self.context.make(empty=True), rule)
        self.layers = {layer.name: layer for layer in planned}
        self.lambda_ = context.train.weight_decay if options.frobenius_decay == "auto" else options.frobenius_decay
        if not options.plus_l2:
            factors = [name for layer in self.layers.values() for name in layer.factor_names]
            self.traits = replace(self.traits, own_decay=factors)

    def warnings(self) -> tuple[str, ...]:
        ratios, dense = self.options.rank_ratio, self.context.make(empty=True)
        return larger_than_dense(
            "method.rank_ratio", ratios, dense, self.layers.values(), lambda layer, ratio: (layer.r(ratio),)
        )

    def _is_dense(self, tier: int) -> bool:
        return self.tiers[tier].rank_ratio == 1

    def _largest_ratio(self, nets: Collection[int]) -> float | None:
        """The largest gamma among the low-rank ones of these nets."""
        return max((self.tiers[net].rank_ratio for net in nets if not self._is_dense(net)), default=None)

    # Server half.

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        specs = self.state_specs()
        ratio = self._largest_ratio(nets)
        if ratio is None:
            return specs
        if not any(map(self._is_dense, nets)):
            specs = {name: spec for name, spec in specs.items() if name.removesuffix(".weight") not in self.layers}
        return specs | self._factor_specs(ratio)

    def _factor_specs(self, ratio: float) -> dict[str, Spec]:
        from fedmpi.tensors import Spec

        specs, channels_last = {}, self.context.train.memory_format == "channels_last"
        for layer in self.layers.values():
            r = layer.r(ratio)
            for name, shape in zip(layer.factor_names, (layer.u_shape(r), layer.v_shape(r)), strict=True):
                specs[name] = Spec(shape, channels_last=channels_last and len(shape) == 4)
        return specs

    def publish(self, state: Params, nets: Collection[int], out: Params) -> None:
        """Algorithm 1, lines 3-4, once for all tiers: `out` gets the factors at the largest rank and the dense rest."""
        ratio = self._largest_ratio(nets)
        for name, value in state.items():
            if name in out:
                out[name].copy_(value)
        if ratio is None:
            return
        for layer in self.layers.values():
            factors = layer.factorize(state[f"{layer.name}.weight"], layer.r(ratio), self.options.solver)
            for name, factor in zip(layer.factor_names, factors, strict=True):
                out[name].copy_(factor)

    def client_weight(self, task: Task) -> float:
        """Eq. 2 without its denominator, which is common to the cohort."""
        tau = self.options.tau
        if tau == "auto":
            tau = 5.0 if self.context.clients.tier_assignment == "dynamic" else math.inf
        return math.exp((self.tiers[task.tier].rank_ratio - 1.0) / tau)

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        """Eq. 1: W = U V^T, folded back into a kernel."""
        for name, value in upload.items():
            layer = self.layers.get(name.removesuffix(".u.weight"))
            if layer is not None and name.endswith(".u.weight"):
                yield f"{layer.name}.weight", layer.lift(value, upload[f"{layer.name}.v.weight"])
            elif name.removesuffix(".v.weight") not in self.layers:
                yield lowrank.factorized.dense_name(name, self.layers), value

    def magnitudes(self, upload: Params, client: Client) -> Tensor:
        """|U V^T|_ij <= |u_i| |v_j|: the largest row norms bound a lifted layer without lifting it."""
        from fedmpi.tensors import max_magnitudes

        bounds = {lowrank.factorized.dense_name(name, self.layers): value for name, value in upload.items()}
        for layer in self.layers.values() if not self._is_dense(client.task.tier) else ():
            u, v = layer.factor_names
            rows = layer.u_matrix(upload[u]).norm(dim=1).max(), layer.v_matrix(upload[v]).norm(dim=0).max()
            bounds[f"{layer.name}.weight"] = rows[0] * rows[1]
        return max_magnitudes([bounds[name] for name in self.state_specs()])

    # Client half.

    def net(self, number: int, *, empty: bool = False) -> nn.Module:
        dense = self.context.make(empty=empty)
        return lowrank.modules.factorize_net(dense, self.layers.values(), self.tiers[number].rank_ratio)

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        """The leading r columns of each factor, and the dense rest whole."""
        for name, target in out.items():
            source = published[name if name in published else lowrank.factorized.dense_name(name, self.layers)]
            target.copy_(source if source.shape == target.shape else _leading(source, target.shape))

    def after_backward(self, net: FlatNet, client: Client) -> None:
        """Frobenius decay: the gradient of lambda/2 |U V^T|_F^2 on every factorized layer."""
        if not self._is_dense(client.task.tier):
            lowrank.decay.decay_layers_(self.layers.values(), net.params, net.grads, self.lambda_)


def _leading(source: Tensor, shape: tuple[int, ...]) -> Tensor:
    return source[tuple(slice(length) for length in shape)]

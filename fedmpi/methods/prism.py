"""PriSM: clients train a few principal kernels of every layer, drawn by importance, and some of its outputs.

Y. Niu, S. Prakash, S. Kundu, S. Lee, S. Avestimehr: Federated Learning of Large Models at the Edge via Principal
Sub-Model Training, arXiv:2208.13141. Eq. 2 (drawing), eq. 5 (aggregation), eq. 6 (Frobenius decay), Algorithm 1.
`orthdrop` is the paper's baseline OrthDrop: the first kernels, not drawn ones.

Server state: of each low-rank layer all R kernels as two factors, u (the paper's V', r x M x k x k, applied first) and
v (its U', N x r), the square roots of the singular values in both; the values themselves, for drawing; the rest dense.
After each round u and v are multiplied and decomposed anew.

Differences from the paper, and from the authors' code (yuehniu/modeldecomp-fl @04e2139):
- Low-rank are all convs but the first and 1x1 ones, all linear layers but the last, and each gate's two matrices of an
  LSTM, for which factors are multiplied back before use (as the code does).
- Drawing is eq. 2, as in the paper; the code draws by softmax(sigma) or uniformly.
- r = ceil(c R) kernels and q = ceil(c N) rows of v: the paper's q = r wherever R = N, which it assumes; O2 doubles q.
  The code has q = ceil(0.4 N) for every client.
- sigma is merged into the factors (as in the code), not trained by itself.
- A client's net has the kernels and rows that it holds and everything else whole, as the code simulates it;
  `cut_inputs` is the net that Table 1 counts. There BatchNorm, shortcuts, biases and the inputs of every layer are
  leading parts, averaged entry by entry over those who hold them; the stem stays whole.
- Frobenius decay replaces weight decay on the factors, as in the code. Clipping, dropped last batches and the cosine
  are settings of `train`. Momentum begins at zero; the code shares some of it and keeps stale ones.
- The server's net is tested as a dense one, multiplied back.
- Two tiers have 40 and 60 % of the clients exactly; the code draws each client's.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedmpi.config.fields import MAX_TIERS, NotNegative
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError, counted
from fedmpi.federation.tiers import Tier
from fedmpi.lowrank import spectrum
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.kernels import draw_kernels, refreshed, singular_values, use_of_kernels
from fedmpi.lowrank.modules import kernel_net
from fedmpi.lowrank.rule import Rule
from fedmpi.lowrank.whole_stem import with_whole_stem
from fedmpi.methods.factor_nets import FactorMethod
from fedmpi.methods.protocol import net_specs
from fedmpi.methods.values import Client, Contributions, MethodContext
from fedmpi.methods.widths import KeepRatioOptions
from fedmpi.models.width import Width
from fedmpi.tensors import Params, Region, Spec, select

Held = Mapping[str, tuple[slice | Tensor, ...]]

SIGMA = "sigma"
"""All layers' singular values in a row: one copy to the host reads them."""

KAPPA = 2.5
KAPPA_OF_SMALL = 4.0
SMALL = 0.2
"""Table 7: kappa, and what it is at keep ratios up to the third."""
Exponents = Annotated[tuple[NotNegative, ...], Field(strict=False, min_length=1, max_length=MAX_TIERS)]


class OrthDropOptions(KeepRatioOptions):
    uploads_nets: ClassVar[bool] = False
    name: str = "orthdrop"
    """PriSM's baseline: the first principal kernels of every layer (Niu et al. 2022)."""
    o2: bool = False
    """PriSM-O2: twice as many outputs as kernels."""
    frobenius_decay: NotNegative | Literal["auto"] = "auto"
    """Lambda of lambda/2 |U V|_F^2 on the factors, instead of weight decay; `auto` is `train.weight_decay`."""
    cut_inputs: bool = False
    """Cut every layer's inputs, too, and what runs past the blocks: the net of the paper's Table 1. Not for LSTMs."""


class PrismOptions(OrthDropOptions):
    name: str = "prism"
    """Some principal kernels of every layer, drawn by importance (Niu et al. 2022)."""
    kappa: Exponents | Literal["auto"] = "auto"
    """Exponent of the drawing p_i = sigma_i^kappa / sum for each tier; 0 is uniform. `auto`: 2.5, and 4 at keep ratios
    up to 0.2."""

    @property
    def kappas(self) -> tuple[float, ...]:
        if self.kappa != "auto":
            return self.kappa
        return tuple(KAPPA_OF_SMALL if ratio <= SMALL else KAPPA for ratio in self.keep_ratio)

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        num_given = len(self.kappas)
        num_tiers = len(self.tiers)
        if num_given != num_tiers:
            yield "method.kappa", f"{counted(num_given, 'exponent')} for {num_tiers} keep ratios; give one for each"


class OrthDrop(FactorMethod):
    """The first r kernels and q rows of each layer for a client, an SVD of each layer after a round."""

    Options = OrthDropOptions
    options: OrthDropOptions

    def __init__(self, context: MethodContext) -> None:
        rule = Rule(dense_layers=1, unroll="output", classifier=context.classifier())
        assert isinstance(context.options, OrthDropOptions)
        super().__init__(context, rule, context.options.frobenius_decay)
        self._num_kernels = [min(layer.matrix_shape) for layer in self.factorized]
        self._whole = len(self.tiers)
        try:
            _ = self.tier_specs  # a model that cannot be cut shows here
        except ValueError as error:
            raise ConfigError("method.cut_inputs", f"not possible for this model: {error}") from None

    def warnings(self) -> tuple[str, ...]:
        return () if self.options.cut_inputs else super().warnings()

    def tested(self) -> tuple[Tier, ...]:
        return (Tier(self._whole, "server", 1.0), *(super().tested() if self.options.test_tiers else ()))

    def net(self, number: int, *, empty: bool = False) -> nn.Module:
        net = self.context.make(empty=empty)
        if number == self._whole:
            return net
        if self.options.cut_inputs:
            share = min(1.0, (2 if self.options.o2 else 1) * self.options.keep_ratio[number])
            net = with_whole_stem(self.context.make(share, "ceil", empty=empty), net)
        sizes = {layer.name: self.sizes(layer, self.options.keep_ratio[number]) for layer in self.factorized}
        return kernel_net(net, sizes)

    def sizes(self, layer: FactorizedLayer, keep_ratio: float) -> tuple[int, int]:
        """Returns (r, q) of a layer."""
        kept = Width(keep_ratio, "ceil")
        q = (2 if self.options.o2 else 1) * kept.of(layer.out_features)
        return kept.of(min(layer.matrix_shape)), min(q, layer.out_features)

    @cached_property
    def model_specs(self) -> dict[str, Spec]:
        """Returns the server's tensors: all kernels and rows of each layer, and the rest."""
        sizes = {layer.name: (min(layer.matrix_shape), layer.out_features) for layer in self.factorized}
        return net_specs(kernel_net(self.context.make(empty=True), sizes))

    @cached_property
    def _leading(self) -> list[Held]:
        """Returns the leading part, for each tier, of every tensor that its net does not hold whole."""
        leading: list[Held] = []
        for specs in self.tier_specs:
            cut = {name: spec.shape for name, spec in specs.items() if spec.shape != self.model_specs[name].shape}
            leading.append({name: tuple(map(slice, shape)) for name, shape in cut.items()})
        return leading

    def _held(self, tier: int, client: Client | None) -> Held:
        """Returns which entries of each tensor a client of this tier holds, where it does not hold all."""
        return self._leading[tier]

    def initial_state(self) -> Params:
        values = super().initial_state()
        for layer in self.factorized:
            u, v = layer.factor_names
            values[u], values[v], _ = layer.decompose(values.pop(f"{layer.name}.weight"), min(layer.matrix_shape))
        return {**{name: values[name] for name in self.state_specs()}, SIGMA: self._sigma(values)}

    def _sigma(self, state: Params) -> Tensor:
        values = []
        for layer in self.factorized:
            u, v = layer.factor_names
            values.append(singular_values(state[u], state[v]))
        return torch.cat(values) if values else torch.zeros(0)

    def _sigma_of_layers(self, params: Params) -> tuple[Tensor, ...]:
        return params[SIGMA].cpu().split_with_sizes(self._num_kernels)

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        return {**self.state_specs(), SIGMA: Spec((sum(self._num_kernels),))}

    def regions(self, client: Client) -> Mapping[str, Region]:
        """Names the entries of eq. 5: a kernel is averaged over those who drew it, a row of v over its holders."""
        return self._held(client.task.tier, client)

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Runs Algorithm 1, line 10: decomposes the means anew."""
        new = super().update(state, means, contributions)
        for layer in self.factorized:
            u, v = layer.factor_names
            new[u], new[v] = refreshed(layer, new[u], new[v])
        return {**new, SIGMA: self._sigma(new)}

    def diagnostics(self, state: Params, published: Params, contributions: Contributions) -> Mapping[str, object]:
        """Returns of each layer how many kernels it needs (4.3), how many clients each kernel had (Fig. 7), and its
        energy beyond the number of kernels of each tier."""
        table = {}
        spectra = {}
        for layer, sigma in zip(self.factorized, self._sigma_of_layers(state), strict=True):
            spectra[layer.name] = sigma
            shares = contributions.shares(layer.factor_names[0])
            counts = sigma.new_full((len(sigma),), shares) if isinstance(shares, float) else shares.flatten(1)[:, 0]
            table[layer.name] = use_of_kernels(sigma, (counts * len(contributions.tasks)).round())
        ranks = {tier.name: self.ranks(tier.capacity) for tier in self.tiers}
        return {"kernels": table, "spectrum": spectrum.table(spectra, ranks)}

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        """Copies the kernels and rows that the client holds (without a client: the leading ones), and the rest."""
        if number == self._whole:
            published = published | {f"{layer.name}.weight": layer.product(published) for layer in self.factorized}
        held = self._held(number, client) if number != self._whole else {}
        for name, target in out.items():
            target.copy_(select(published[name], held[name]) if name in held else published[name])


class Prism(OrthDrop):
    """Kernels drawn for each client and layer, sigma_i^kappa to one another."""

    Options = PrismOptions
    options: PrismOptions

    def _kernels(self, tier: int, client: Client) -> list[Tensor]:
        """Returns the kernels that a client draws of each layer."""
        sizes = [*self.ranks(self.options.keep_ratio[tier]).values()]
        sigma = self._sigma_of_layers(client.published)
        return draw_kernels(sigma, sizes, self.options.kappas[tier], client.generator("kernels"))

    def _held(self, tier: int, client: Client | None) -> Held:
        held = dict(super()._held(tier, client))
        for layer, kernels in zip(self.factorized, self._kernels(tier, client), strict=True) if client else ():
            for axis, name in enumerate(layer.factor_names):
                if name in held:
                    held[name] = (*held[name][:axis], kernels, *held[name][axis + 1 :])
        return held

    def drawn(self, client: Client) -> Mapping[str, object]:
        tier = client.task.tier
        kernels = zip(self.factorized, self._kernels(tier, client), strict=True)
        chosen = ((layer, drawn) for layer, drawn in kernels if layer.factor_names[0] in self._leading[tier])
        return {"kernels": {layer.name: _bits(drawn.tolist()) for layer, drawn in chosen}}


def _bits(numbers: Sequence[int]) -> str:
    """Returns a hexadecimal number whose bit i is set for each i of `numbers`: records stay short."""
    return f"{sum(1 << number for number in numbers):x}"

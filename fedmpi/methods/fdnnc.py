"""FDNNC with CEFO: one mini-batch gradient a client and round; big devices train W, small ones A and B of W = A B^T.

X. Li, Y. Li, S. Li, Y. Zhou, C. Chen, Z. Zheng: A Unified Federated DNNs Framework for Heterogeneous Mobile Devices,
IEEE Internet of Things Journal 9, 2022, doi:10.1109/JIOT.2021.3088867. Eqs. 1-3 (A = U sqrt(S), B = V sqrt(S)), 4-6
(loss, gradients), 8-19 (CEFO), III.D (the three patterns), IV.B (`upload`: FULL and HALF), IV.C (cohorts). An iteration
of the paper is a round here.

Server state: W of every layer if there are big devices, A and B of the factorized ones if there are small devices, and
what both nets share (convs, biases). Factors that are all zero are yet to come, out of W. Between the two phases of a
`both` round the state also has what the big devices made of it. In `lowrank`'s names u is B^T (r, in), applied first,
and v is A (out, r).

Differences from the paper:
- Eqs. 7 and 17-19 add the gradient; here it is subtracted.
- Rank, learning rate, batch size and initial values are not in the paper: `rank_ratio` and `layer_ranks`, `train.lr`,
  `train.batch_size`, the model's own (factorized where only small devices are).
- The loss of eq. 4 is `loss: mse`, as a mean over the batch. The output's activation is a sigmoid: eq. 5 multiplies by
  f'(z) element by element, which excludes a softmax, and of the paper's examples the sigmoid has the labels' range.
- The paper is silent on what is not fully connected: gradients of convs are always sent, are averaged over all senders,
  and in `both` the two groups' results are averaged half and half, as are biases.
- Only layers that r makes smaller, (M + N) r < M N, are factorized.
- HALF is III.C's, G_A and G_b or G_B and G_b for all layers at once; IV.B's "G_A and G_B" is a slip. Of c clients
  floor(c / 2) send A; a single one sends A in odd rounds, B in even ones.
- 10 % of each group: `clients.per_round` is shared in proportion, at least one client a group. With dynamic tiers
  (III.D: devices run other nets at other times) a group is those of this round, which may be fewer.
- Without big or without small devices every pattern is FedSGD on the net of those that there are.
- `train.weight_decay` adds its gradient to the client's, on factors as on the rest (the paper has none);
  `train.local_epochs`, `train.local_steps`, `clients.work` and `train.momentum` have nothing to act on.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedmpi import seeds
from fedmpi.config.fields import Count, PartialShare, ShareOrZero
from fedmpi.config.schema import Config
from fedmpi.federation.assignment import Task
from fedmpi.federation.tiers import Tier
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, TrainOutcome
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.modules import factorize_net
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.methods.protocol import ROUND, Method, copy_into
from fedmpi.methods.values import (
    Client,
    ClientLoad,
    Contributions,
    Costs,
    LayerRank,
    LocalWork,
    MethodContext,
    MethodOptions,
    Phase,
    Training,
)
from fedmpi.tensors import NOTHING, Params, Region, Spec

BIG = 0
SMALL = 1

# What the big devices made of a tensor, until the small ones are done, too, and in which round.
_PARKED = "big device:"
_PARKED_IN = f"{ROUND}big devices"
# An entry of a gradient beyond this is divergence; exact sums keep 2^-37 of it at twenty clients.
_LARGEST_GRADIENT = 2.0**20


class FDNNCOptions(MethodOptions):
    uploads_nets: ClassVar[bool] = False
    needs_blocks: ClassVar[bool] = True
    only_sgd: ClassVar[str] = "devices of fdnnc send gradients, and the server takes the steps"
    capacity: ClassVar[str] = "rank_ratio"
    name: str = "fdnnc"
    """Gradients of whole layers and of their factors, by device (Li et al. 2022)."""
    pattern: Literal["both", "bfirst", "switch"] = "switch"
    """`both`: each round W <- (A B^T + W) / 2. `bfirst`: big devices alone until `switch_round`, then small ones alone.
    `switch`: in each round first the big devices, then the small ones on their result.
    """
    switch_round: Count = 400
    """Rounds that big devices train alone (`bfirst`)."""
    upload: Literal["full", "half"] = "full"
    """`half` (CEFO): half of the small devices send the gradient of A, the others that of B, all that of the rest."""
    big_share: ShareOrZero = 0.5
    """Share of big devices among the clients, where `clients.tier_blocks` does not say."""
    rank_ratio: PartialShare = 0.25
    """r of a fully connected M x N layer is rank_ratio min(M, N); a layer that this does not make smaller is whole."""
    layer_ranks: dict[str, LayerRank] = {}
    """Exceptions by layer name pattern (`classifier.*`): `dense`, another ratio, or r as a whole number."""
    loss: Literal["cross_entropy", "mse"] = "cross_entropy"
    """`mse`: |y - sigmoid(output)|^2 / 2 to one-hot labels, which `train.masked_loss` leaves alone."""

    def tier_blocks(self, num_clients: int) -> tuple[int, ...]:
        num_big = round(self.big_share * num_clients)
        return num_big, num_clients - num_big

    def needs_classes(self) -> dict[str, str]:
        return {"loss": "cross_entropy, which then means train.loss"} if self.loss == "mse" else {}

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        """Refuses runs that end before small devices train."""
        yield from super().problems(config)
        both = all(config.clients.tier_blocks or self.tier_blocks(config.clients.count))
        if both and config.clients.per_round < 2:
            yield "clients.per_round", "1, but there are big and small devices; allowed: 2 or more"
        if self.pattern == "bfirst" and config.rounds <= self.switch_round:
            todo = "small devices train after it; make it smaller, or the run longer"
            yield "method.switch_round", f"round {self.switch_round} of {config.rounds}, but {todo}"


class FDNNC(Method):
    """Server SGD on two nets, of which one is the other's truncated SVD."""

    Options = FDNNCOptions
    options: FDNNCOptions

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        self.tiers = Tier(BIG, "big", 1.0), Tier(SMALL, "small", self.options.rank_ratio)
        self.layers = {layer.name: layer for layer in _plan_layers(context.make(empty=True), self.options)}
        self.blocks = context.tier_blocks or self.options.tier_blocks(context.clients.count)
        # With one group alone there is nothing to switch or to merge.
        self.pattern = self.options.pattern if all(self.blocks) else None

    def warnings(self) -> tuple[str, ...]:
        if self.pattern is None and self.options.pattern != "both":
            return (f"all devices are of one size, so method.pattern={self.options.pattern} is plain FedSGD",)
        return ()

    # The shape of a round.

    def phases(self, round_number: int) -> tuple[Phase, ...]:
        cohorts = zip(self.tiers, self._cohort_sizes(), strict=True)
        big, small = (Phase(tier.name, frozenset({tier.index}), size) for tier, size in cohorts)
        if self.pattern == "bfirst":
            return (big,) if round_number <= self.options.switch_round else (small,)
        return tuple(phase for phase in (big, small) if phase.num_clients)

    def _cohort_sizes(self) -> tuple[int, int]:
        (big, small) = self.blocks
        per_round = self.context.clients.per_round
        if not all(self.blocks):
            return (per_round, 0) if big else (0, per_round)
        num_big = max(1, min(round(per_round * big / (big + small)), per_round - 1))
        return num_big, max(1, per_round - num_big)

    # Server half.

    def state_specs(self) -> dict[str, Spec]:
        return self.published_specs([tier for tier in (BIG, SMALL) if self.blocks[tier]])

    def initial_state(self) -> Params:
        state = super().initial_state()
        if not self.blocks[BIG]:
            state |= self._factors(state)
        return {name: state[name] for name in self.state_specs()}

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        specs: dict[str, Spec] = {}
        for net in sorted(nets):
            specs |= self.tier_specs[net]
        return specs

    def publish(self, state: Params, nets: Collection[int], out: Params) -> None:
        """Makes what the state lacks of a net that nobody trains yet out of the other net."""
        known = state | self._factors(state) if SMALL in nets else state
        if BIG in nets and not self.blocks[BIG]:
            known = known | self._weights(state)
        copy_into(out, known)

    def _factors(self, state: Params) -> Params:
        """Returns B^T and A: those of the state, or where there are none yet the truncated SVD of W."""
        factors: Params = {}
        for layer in self.layers.values():
            u, v = layer.factor_names
            if u in state and (bool(state[u].any()) or f"{layer.name}.weight" not in state):
                factors |= {u: state[u], v: state[v]}
            else:
                r = layer.r(self.options.rank_ratio)
                factors[u], factors[v], _ = layer.decompose(state[f"{layer.name}.weight"], r)
        return factors

    def _weights(self, state: Params) -> Params:
        """Returns W = A B^T of every factorized layer."""
        return {f"{layer.name}.weight": layer.product(state) for layer in self.layers.values()}

    def bound(self, name: str, magnitude: float) -> float:
        return _LARGEST_GRADIENT

    def regions(self, client: Client) -> Mapping[str, Region]:
        """Follows eqs. 14, 15: a mean is over those who send; what a device never has may count as zero."""
        return dict.fromkeys(self._withheld(client.task), NOTHING)

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Takes the steps, and the SVD of W wherever small devices continue from it in this round or the next."""
        new = self._next(state, means, contributions)
        return new | self._factors(new) if self.pattern in ("both", "switch") else new

    def _next(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Takes the steps of eqs. 17-19 on the nets of this phase's devices, then merges by the pattern (III.D)."""
        if contributions.phase.name == self.tiers[BIG].name:
            stepped = self._stepped(state, means, contributions, BIG)
            if self.pattern == "both":
                parked = {_PARKED + name: value for name, value in stepped.items()}
                return state | parked | {_PARKED_IN: torch.tensor(contributions.round_number)}
            return self._outdated(state | stepped)
        state = state | self._factors(state)
        stepped = self._stepped(state, means, contributions, SMALL)
        if self.pattern == "both":
            return self._merged(state, stepped, contributions.round_number)
        return state | stepped | (self._weights(state | stepped) if self.blocks[BIG] else {})

    def _stepped(self, state: Params, means: Params, contributions: Contributions, tier: int) -> Params:
        """Takes one step of SGD on each tensor of a tier's net, but for factors of which nobody sent the gradient."""
        names = [name for name in self.published_specs({tier}) if torch.as_tensor(contributions.shares(name)).any()]
        return {name: torch.sub(state[name], means[name], alpha=contributions.lr) for name in names}

    def _merged(self, state: Params, small: Params, round_number: int) -> Params:
        """Returns W+ = (A B^T + W) / 2, and likewise what both nets share; without a big device W has not moved."""
        both = state | small
        both |= self._weights(both)
        # Else what is parked is of a round without small devices.
        is_of_this_round = int(state.get(_PARKED_IN, -1)) == round_number
        prefix = _PARKED if is_of_this_round else ""
        merged = {name: (both[name] + state[prefix + name]) / 2 for name in self.model_specs}
        return self._outdated({name: state[name] for name in self.state_specs()} | merged)

    def _outdated(self, state: Params) -> Params:
        """Zeroes A and B, because W is newer."""
        names = {name for layer in self.layers.values() for name in layer.factor_names}
        return {name: value.new_zeros(value.shape) if name in names else value for name, value in state.items()}

    # Client half.

    def net(self, number: int, *, empty: bool = False) -> nn.Module:
        return factorize_net(self.context.make(empty=empty), self.layers.values(), self.tiers[number].capacity)

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Computes the gradient of one mini-batch: a step of length 0 leaves it in the net, clipped as `train` says."""
        order = torch.randperm(len(client.examples), generator=client.generator("batch"))
        batch = client.examples[order[: self.context.train.batch_size].numpy()]
        # A client without examples takes no step, so it would send what the one before it has left in the buffer.
        trainer.net.gradient.zero_()
        loss = _half_squared_error if self.options.loss == "mse" else work.loss
        iteration = replace(work, epochs=1, steps=0, share=1.0, lr=0.0, loss=loss)
        return super().train(trainer, replace(client, examples=batch), iteration)

    def upload_specs(self, tier: int, task: Task | None = None) -> dict[str, Spec]:
        withheld = self._withheld(task) if task else ()
        return {name: spec for name, spec in self.published_specs({tier}).items() if name not in withheld}

    def upload(self, net: FlatNet, client: Client) -> Params | None:
        """Returns gradients, that of L2 included; None if the loss diverged."""
        if client.is_restored:
            return None
        grads = list(net.grads.values())
        params = list(net.params.values())
        decayed = torch._foreach_add(grads, params, alpha=self.context.train.weight_decay)
        named = dict(zip(net.grads, decayed, strict=True))
        return {name: named[name] for name in self.upload_specs(client.task.tier, client.task)}

    def _withheld(self, task: Task) -> tuple[str, ...]:
        """Names, for CEFO, the factors whose gradients this client keeps to itself: those of B or those of A."""
        if task.tier == BIG or self.options.upload == "full":
            return ()
        kept = 0 if self._sends_a(task) else 1
        return tuple(layer.factor_names[kept] for layer in self.layers.values())

    def _sends_a(self, task: Task) -> bool:
        if task.cohort_size == 1:
            return task.round_number % 2 == 1
        generator = seeds.numpy_generator("method:cefo", self.context.seed, task.round_number)
        return bool(generator.permutation(task.cohort_size)[task.place] < task.cohort_size // 2)

    # What it would cost real clients.

    def count_steps(self, tier: int, num_examples: float, share: float) -> Training:
        """Counts the gradient of one mini-batch, which no optimizer applies."""
        size = min(self.context.train.batch_size, round(num_examples))
        return replace(Training.of(tier, [size] if size else []), updates=0)

    def costs(self, turn: ClientLoad) -> Costs:
        """Counts what a small device sends under `half`: (M + N) r / 2 + M numbers of an M x N layer on average, where
        it is not known which."""
        costs = super().costs(turn)
        specs = self.upload_specs(turn.tier)
        halved = self.layers.values() if turn.tier == SMALL and self.options.upload == "half" else ()
        saved = sum(specs[name].nbytes for layer in halved for name in layer.factor_names) // 2
        return replace(costs, up_bytes=costs.up_bytes - (0 if turn.task else saved))


def _plan_layers(net: nn.Module, options: FDNNCOptions) -> Iterator[FactorizedLayer]:
    """Yields the fully connected layers that become smaller, each with its r; the last one is no exception."""
    overrides = dict(options.layer_ranks)
    overrides.setdefault("*", options.rank_ratio)
    for layer in plan_layers(net, Rule(overrides=overrides)):
        asked = layer.fixed
        assert asked is not None  # one of the patterns has matched
        r = asked if isinstance(asked, int) else max(1, round(asked * min(layer.matrix_shape)))
        if layer.kernel is None and layer.growth(r) < 0:
            yield replace(layer, fixed=r)


def _half_squared_error(output: Tensor, targets: Tensor) -> Tensor:
    """Returns eq. 4, the batch's mean of |y - sigmoid(output)|^2 / 2; output (B, classes), targets int64 (B,)."""
    wanted = torch.eye(output.shape[1], device=output.device)[targets]
    return 0.5 * (wanted - output.float().sigmoid()).square().sum(1).mean()

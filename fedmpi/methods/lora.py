"""LoRA in a federation whose clients have adapters of unequal ranks; `aggregation` says what the server makes of them.

E. J. Hu et al.: LoRA: Low-Rank Adaptation of Large Language Models, arXiv:2106.09685; with `scale: rslora` D.
Kalajdzievski: A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA, arXiv:2312.03732.

    fedit      J. Zhang et al.: Towards Building the Federated GPT: Federated Instruction Tuning, arXiv:2305.05644.
    ffa        Y. Sun et al.: Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024, arXiv:2403.12313.
    hetlora    Y. J. Cho et al.: Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models,
               arXiv:2401.06432.
    flora      Z. Wang et al.: FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank
               Adaptations, NeurIPS 2024, arXiv:2409.05976.
    flexlora   J. Bai et al.: Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
               Resources, NeurIPS 2024, arXiv:2402.11505.
    fedex      R. Singhal et al.: FedEx-LoRA, arXiv:2410.09432.
    raflora    F. Wu et al.: Preventing Rank Collapse in Federated Low-Rank Adaptation with Client Heterogeneity,
               arXiv:2602.13486.
    delta      ours: `lowrank/correction.py` on the change of a frozen weight. No method's paper has it.

Server state of each layer: A and B at the largest rank, the change D of the weight, or both; `averages` says which.

We read the abstracts of these papers, the authors' code of FedIT and FLoRA (on GitHub:
JayZhang42/FederatedGPT-Shepherd, ATP-1010/FederatedLLM), a fork of CERT-Lab/fedex-lora for FedEx and FFA, code of
others for HetLoRA and FlexLoRA, none for raFLoRA. These points are our reading or our choice:
- A change is s_i B_i A_i with the scale of the client's own rank. FLoRA's code gives all one scale (`scale: equal`).
- Of a D that is sent as factors, rows of A are its right singular vectors and columns of B have the norm sigma / s, so
  that s B A is the truncation of D at every rank. Where sigma is zero, A has the rows of its start.
- `fedit`, `ffa` and `fedex` are papers of one rank. Here smaller factors are padded with zeros, so ranks that a share c
  of the weight holds shrink. The remainder that `fedex` gives the base is that of the largest tier's adapters. FedEx's
  code has no weights (`weighting: uniform`).
- `flora` draws A anew for each client and round, as its code does. Its bytes down are the adapters of a round, on
  average over rounds; those of `fedex` come on top of A and B. D, which travels here in their place, is the same.
- `hetlora` has one rank and one norm for all layers of a client: the root of the sum of their squares. The norm, of s_i
  B_i A_i where the paper has B_i A_i, is the client's weight in all means, in place of its number of examples.
- `raflora` leaves ranks that no client of the round holds as they were sent.
- `delta` takes as covered what A's rows and B's columns span, because B is zero at first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedmpi.config.fields import NotNegative, Share, ShareOrZero
from fedmpi.config.schema import Config
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, TrainOutcome
from fedmpi.lowrank.adapter import drawn, factors_of
from fedmpi.lowrank.correction import TierCoverage, covered_change, nested_bases
from fedmpi.lowrank.svd import gram
from fedmpi.methods.adapters import AdapterOptions, Adapters
from fedmpi.methods.protocol import copy_into
from fedmpi.methods.values import Client, ClientLoad, Contributions, Costs, LocalWork, MethodContext
from fedmpi.tensors import NOTHING, Params, Region, Spec

NORM = "lora.norm"
RANK = "lora.rank"
LARGEST_NORM = 2.0**10
_TINY = 1e-12


class LoraOptions(AdapterOptions):
    name: str = "lora"
    """Adapters of unequal ranks beside frozen linear layers (Hu et al. 2021)."""
    aggregation: Literal["fedit", "ffa", "hetlora", "flora", "flexlora", "fedex", "raflora", "delta"] = "delta"
    """What the server makes of the clients' A and B: `fedmpi/methods/README.md` has a table. `delta` is fedhm's;
    `hetlora` weighs clients by norms, whatever `weighting` is."""
    coverage: ShareOrZero = 1.0
    """How much `delta` raises an entry that only some clients can change."""
    gamma: Share = 0.99
    """Share of its ranks that a client of `hetlora` keeps when training has shrunk the others; 1 keeps all."""
    tail_decay: NotNegative = 0.005
    """Weight of |B| |A| of these other ranks in the loss of `hetlora`."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        for key, owner in (("coverage", "delta"), ("gamma", "hetlora"), ("tail_decay", "hetlora")):
            value = getattr(self, key)
            if self.aggregation != owner and value != LoraOptions.model_fields[key].default:
                yield f"method.{key}", f"{value:g}, but method.aggregation={self.aggregation} has none; leave it out"


class Lora(Adapters):
    """`fedit`, and the base of the others: makes the method of the aggregation that the options name."""

    Options: ClassVar[type[LoraOptions]] = LoraOptions
    options: LoraOptions

    def __new__(cls, context: MethodContext) -> Lora:
        return object.__new__(_CLASSES[context.options.aggregation])  # type: ignore[attr-defined]


class FfaLora(Lora):
    """A stays as it was drawn."""

    averages = ("b",)
    holds = ("a",)
    band_power = 1


class FLora(Lora):
    """D <- D + mean of s_i B_i A_i."""

    averages = ("change",)
    sends = ("change",)
    holds = ("change",)

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        super().narrow(published, number, {name: value for name, value in out.items() if name in published})
        generator = client.generator("adapters") if client else torch.Generator()
        for layer in self.layers:
            a = out[f"{layer}.a"]
            a.copy_(drawn(tuple(a.shape), generator), non_blocking=True)
            out[f"{layer}.b"].zero_()

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        return means | {name: state[name] + means[name] for name in self.part_specs("change")}


class FedExLora(Lora):
    """As fedit; D <- D + mean of s_i B_i A_i - s B A."""

    averages = ("a", "b", "change")
    sends = ("a", "b", "change")
    holds = ("change",)

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        new = dict(means)
        for layer in self.layers:
            name = f"{layer}.change"
            new[name] = state[name] + (means[name] - self.product(means, layer, 0))
        return new


class FlexLora(Lora):
    """D <- mean of s_i B_i A_i; clients get its leading singular triplets."""

    averages = ("change",)
    band_power = 1

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        self.late = {(f"{layer}.a", f"{layer}.b"): 0.0 for layer in self.layers}

    def publish(self, state: Params, nets: object, out: Params) -> None:
        copy_into({name: value for name, value in out.items() if name in state}, state)
        for layer in self.layers:
            if f"{layer}.a" in out:
                a, b = factors_of(state[f"{layer}.change"], self.start[f"{layer}.a"])
                out[f"{layer}.a"].copy_(a)
                out[f"{layer}.b"].copy_(b)

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        super().narrow(published, number, out)
        for layer in self.layers:
            out[f"{layer}.b"].div_(self.scale(number))

    def singular_values(self, state: Params, layer: str) -> Tensor:
        return gram(state[f"{layer}.change"])[1]


class SummedByTier(FlexLora):
    """Sums the changes of each layer in a part for each tier."""

    band_power = 0

    def sums(self) -> Mapping[str, str]:
        parts = {f"{name}..{tier.index}": name for name in self.part_specs("change") for tier in self.tiers}
        return {name: name for name in self.model_specs} | parts

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        new = {name: means[name] for name in self.model_specs}
        for layer in self.layers:
            old = state[f"{layer}.change"]
            parts = [means[f"{layer}.change..{tier.index}"].double() for tier in self.tiers]
            new[f"{layer}.change"] = self.combined(layer, old, parts, contributions).to(old.dtype).contiguous()
        return new

    def combined(self, layer: str, old: Tensor, parts: list[Tensor], contributions: Contributions) -> Tensor:
        """Returns the new D of a layer out of the old one and the means of its parts, float64 (out, in)."""
        raise NotImplementedError


class RaFlora(SummedByTier):
    """D <- the sum over bands of ranks of the mean of s_i B_i A_i in this band over the clients that hold it."""

    def _band(self, layer: str, tier: int) -> slice:
        """Returns the ranks of a layer that a tier has and the next smaller one has not."""
        below = self.rank(layer, tier + 1) if tier + 1 < len(self.tiers) else 0
        return slice(below, self.rank(layer, tier))

    def terms(self, layer: str, tier: int) -> Iterator[tuple[str, slice]]:
        for held in range(tier, len(self.tiers)):
            yield f"..{held}", self._band(layer, held)

    def regions(self, client: Client) -> Mapping[str, Region]:
        absent = range(client.task.tier)
        return {f"{name}..{tier}": NOTHING for name in self.part_specs("change") for tier in absent}

    def combined(self, layer: str, old: Tensor, parts: list[Tensor], contributions: Contributions) -> Tensor:
        largest = min(task.tier for task in contributions.tasks)
        sent = contributions.published
        for tier in range(largest):
            band = self._band(layer, tier)
            parts[tier] = (sent[f"{layer}.b"][:, band] @ sent[f"{layer}.a"][band]).to(parts[tier])
        return torch.stack(parts).sum(0)


class DeltaLora(SummedByTier):
    """D <- D + the mean change; an entry is averaged over the clients that cover it."""

    def terms(self, layer: str, tier: int) -> Iterator[tuple[str, slice]]:
        yield f"..{tier}", slice(None)

    def combined(self, layer: str, old: Tensor, parts: list[Tensor], contributions: Contributions) -> Tensor:
        sums: dict[int | None, Tensor] = {}
        for tier in sorted({task.tier for task in contributions.tasks}):
            r = self.rank(layer, tier)
            sums[r] = sums[r] + parts[tier].t() if r in sums else parts[tier].t()
        ranks = ((self.rank(layer, task.tier), self.client_weight(task)) for task in contributions.tasks)
        u = contributions.published[f"{layer}.a"].to(old).t()
        v = contributions.published[f"{layer}.b"].to(old).t()
        cover = TierCoverage.from_clients(ranks)
        change = covered_change(sums, old.t(), u, v, cover, self.options.coverage, nested_bases(u, v))
        return old + change.t()


class HetLora(Lora):
    """A <- sum of w_i A_i / sum of w_i, and B likewise, with w_i = |s_i B_i A_i|; a client drops ranks that shrink."""

    def state_specs(self) -> dict[str, Spec]:
        return super().state_specs() | {NORM: Spec((1,))}

    def bound(self, name: str, magnitude: float) -> float:
        if name == NORM:
            return LARGEST_NORM
        return super().bound(name, magnitude) * (LARGEST_NORM if name in self.start else 1.0)

    def client_weight(self, task: Task) -> float:
        return 1.0

    def untrained_weight(self, state: Params, task: Task) -> float:
        return max(_TINY, float(self._norm(state, task.tier)))

    def _norm(self, factors: Params, tier: int) -> Tensor:
        """Returns the norm of the changes of all layers at the rank of a tier, (1,)."""
        changes = [self.product(factors, layer, tier, slice(self.rank(layer, tier))) for layer in self.layers]
        return torch.stack([change.double().square().sum() for change in changes]).sum().sqrt().float().view(1)

    def _weighted(self, upload: Params, tier: int) -> Params:
        """Returns the upload, its factors times the norm of the change, and this norm (1,)."""
        norm = self._norm(upload, tier)
        weighted = {name: norm * value if name in self.start else value for name, value in upload.items()}
        return weighted | {NORM: norm}

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        return super().lift(self._weighted(upload, client.task.tier), client)

    def magnitudes(self, upload: Params, client: Client) -> Tensor:
        return super().magnitudes(self._weighted(upload, client.task.tier), client)

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        new = dict(means)
        for name in self.start:  # If no client changed its adapters, the old values stay.
            new[name] = torch.where(means[NORM] > 0, means[name] / means[NORM], state[name])
        return new

    def _own_rank(self, client: Client) -> int:
        """Returns how many ranks a client has left before its training."""
        most = self.options.ranks[client.task.tier]
        return min(most, int(client.memory[RANK])) if client.memory else most

    def _kept(self, rank: int) -> int:
        return max(1, int(self.options.gamma * rank))

    def _tails(self, params: Params, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields of each layer the rows of A and the columns of B that a client of this rank may drop."""
        for layer in self.layers:
            r = min(rank, *self.layers[layer].matrix_shape)
            yield params[f"{layer}.a"][self._kept(r) : r], params[f"{layer}.b"][:, self._kept(r) : r]

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        """Fills ranks that the client has dropped with zeros, which have no gradient."""
        super().narrow(published, number, out)
        if client is not None:
            self._drop(out, self._own_rank(client))

    def _drop(self, params: Params, rank: int) -> None:
        for layer in self.layers:
            params[f"{layer}.a"][rank:].zero_()
            params[f"{layer}.b"][:, rank:].zero_()

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        rank = self._own_rank(client)
        params = trainer.net.params
        before = sum(a.norm() * b.norm() for a, b in self._tails(params, rank))
        outcome = super().train(trainer, client, work)
        after = sum(a.norm() * b.norm() for a, b in self._tails(params, rank))
        if bool(after < before):
            rank = self._kept(rank)
            self._drop(params, rank)
        client.scratch[RANK] = torch.tensor([float(rank)])
        return outcome

    def after_backward(self, net: FlatNet, client: Client) -> None:
        """Adds the gradient of tail_decay |B| |A| of the ranks that may be dropped, of each layer."""
        rank = self._own_rank(client)
        pairs = zip(self._tails(net.params, rank), self._tails(net.grads, rank), strict=True)
        for (a, b), (grad_a, grad_b) in pairs if self.options.tail_decay else ():
            grad_a.add_(a * (b.norm() / a.norm().clamp_min(_TINY)), alpha=self.options.tail_decay)
            grad_b.add_(b * (a.norm() / b.norm().clamp_min(_TINY)), alpha=self.options.tail_decay)

    def remember(self, net: FlatNet, client: Client) -> Params:
        return {RANK: client.scratch[RANK]}

    def costs(self, turn: ClientLoad) -> Costs:
        """Counts the ranks that a client has left, before its training down and after it up."""
        costs = super().costs(turn)
        if turn.client is None:
            return costs
        down = self._own_rank(turn.client)
        up = int(turn.client.scratch[RANK]) if RANK in turn.client.scratch else down
        dropped = [self.factor_bytes(turn.tier) - self.factor_bytes(turn.tier, most) for most in (down, up)]
        return replace(costs, down_bytes=costs.down_bytes - dropped[0], up_bytes=costs.up_bytes - dropped[1])


_CLASSES: Mapping[str, type[Lora]] = {
    "fedit": Lora,
    "ffa": FfaLora,
    "hetlora": HetLora,
    "flora": FLora,
    "flexlora": FlexLora,
    "fedex": FedExLora,
    "raflora": RaFlora,
    "delta": DeltaLora,
}

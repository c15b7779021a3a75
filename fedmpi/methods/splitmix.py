"""Split-Mix: independent narrow base nets; a client trains as many as it can afford, levels are ensembles of them.

J. Hong, H. Wang, Z. Wang, J. Zhou: Efficient Split-Mix Federated Learning for On-Demand and In-Situ Customization, ICLR
2022, arXiv:2203.09747. Algorithm 1, without its adversarial part (dual BatchNorm).

Server state: B = round(largest level / atom) base nets of width `atom`, `0.conv1.weight` being of the first. A client
of level R trains b = round(R / atom) of them: the next one of a shuffled queue that all clients of all rounds draw
from, and b - 1 random others. Each base becomes the mean over the clients that trained it; one that nobody trained
stays. Level R is tested as the mean of the logits of the first b bases.

Differences from the paper, and from its code (illidanlab/SplitMix):
- Weights are the code's, by samples. The initial values are those of FedHM's tables (YXShi2000/FedHM), as of any narrow
  net; its other settings are `weighting: uniform` and `train.masked_loss`. The code's own are `init: rescaled` and, for
  class-skewed data, a mask of each batch's absent classes.
- The queue's place follows from the round and the client's place in the cohort, and each of its shuffles has a seed of
  its own, so that every rank knows it.
- Levels are rounded to whole bases (2.8 / 0.4 is 7); FedHM's code truncates it to 6.
- The Scaler before a norm layer is a larger eps of that layer, which is the same (`surgery.scaler`).
- `train.clip_norm` limits the gradient of all of a client's bases together; the recorded loss is the mean over them.
- The first bases are tested, not the best ones on a validation set.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedmpi import seeds
from fedmpi.config.fields import MAX_NUMBER, MAX_TIERS, Positive, Share
from fedmpi.config.schema import Config
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, Loss, TrainOutcome, gradients
from fedmpi.methods.fedopt import ServerMethod, ServerOptions
from fedmpi.methods.protocol import copy_into, net_specs
from fedmpi.methods.values import Client, LocalWork, MethodContext, Training, WeightedOptions
from fedmpi.models.surgery.nested import fan_in_shares
from fedmpi.models.surgery.scaler import add_scaler, scaled_layers, scaler_warning
from fedmpi.models.width import Rounding
from fedmpi.tensors import NOTHING, Params, Region, Spec

Levels = Annotated[tuple[Positive, ...], Field(strict=False, min_length=1, max_length=MAX_TIERS)]
# FedHM's tables have eight at most; all of them are nets of their own, in every ensemble that is tested.
MAX_BASES = 16


class SplitMixOptions(WeightedOptions, ServerOptions):
    capacity: ClassVar[str] = "levels"
    name: str = "splitmix"
    """Ensembles of narrow base nets, by capacity (Hong et al. 2022)."""
    levels: Levels = (1.0, 0.5, 0.25, 0.125)
    """Budget R of each tier, largest first: it has round(R / atom) base nets. May exceed 1, as in FedHM's tables."""
    atom: Share = 0.125
    """Width of a base net."""
    rounding: Rounding = "round"
    """Channels of a base net's layers: rounded to the nearest whole number or up."""
    scaler: bool = True
    """Divide a base's activations by `atom` in training, before every norm layer; in a net without any, after every
    conv and linear layer but the last.
    """
    init: Literal["own", "rescaled"] = "own"
    """`own`: as any net of that width. `rescaled`: the weights of convs and linear layers are multiplied by the root of
    their share of the full net's inputs, as if drawn for the full net; layers that see the data keep theirs.
    """

    def num_bases(self, level: float) -> int:
        """Returns b, how many base nets a level has. Not truncated: 2.8 / 0.4 is 6.999... in floating point."""
        return round(min(level / self.atom, MAX_NUMBER))

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        most = self.num_bases(max(self.levels))
        if most > MAX_BASES:
            yield "method.levels", f"{max(self.levels):g} is {most} times method.atom; allowed: {MAX_BASES} base nets"
        if self.num_bases(self.levels[-1]) < 1:
            yield "method.levels", f"{self.levels[-1]:g} is less than half of method.atom ({self.atom:g}): no base net"


class Ensemble(nn.ModuleList):
    """Nets of the same inputs and classes; (B, ...) -> (B, num_classes), the mean of their logits."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([net(x) for net in self]).mean(0)


class SplitMix(ServerMethod):
    """B independent base nets; a tier's net is the ensemble of its first b, or of those that a client trains."""

    Options = SplitMixOptions
    options: SplitMixOptions

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        self.num_bases = [self.options.num_bases(level) for level in self.options.levels]

    def warnings(self) -> tuple[str, ...]:
        said = []
        base = self._base(empty=True)
        if self.options.atom < 1 and net_specs(base) == net_specs(self.context.make(empty=True)):
            said.append(
                f"a base net of method.atom {self.options.atom:g} is the whole net: the model ignores its width"
            )
        found = scaler_warning(base, self.options.atom) if self.options.scaler else ""
        if found and not scaled_layers(base):
            said.append(found)
        elif found and self.options.init == "own":
            said.append(f"{found}: choose method.init=rescaled")
        return tuple(said)

    def count_steps(self, tier: int, num_examples: float, share: float) -> Training:
        return replace(super().count_steps(tier, num_examples, share), nets_in_turn=self.num_bases[tier])

    @cached_property
    def model_specs(self) -> dict[str, Spec]:
        return net_specs(self._ensemble(max(self.num_bases), empty=True))

    @cached_property
    def _base_names(self) -> list[str]:
        return [name for name, _ in self._base(empty=True).named_parameters()]

    def initial_state(self) -> Params:
        """Draws every base from a seed of its own."""
        shares = {}
        if self.options.init == "rescaled":
            shares = fan_in_shares(self.context.make(empty=True), self._base(empty=True))
        state = {}
        for base in range(max(self.num_bases)):
            net = self._base(seeds.mix("splitmix:base", self.context.seed, base))
            for name, value in net.named_parameters():
                state[f"{base}.{name}"] = value.detach() * math.sqrt(shares.get(name, 1.0))
        return state

    def assigned(self, client: Client) -> list[int]:
        """Returns the base nets that the client trains: one from the queue, distinct random others."""
        task = client.task
        count = max(self.num_bases)
        num_served = (task.round_number - 1) * task.cohort_size + task.place
        cycle, turn = divmod(num_served, count)
        first = int(seeds.numpy_generator("splitmix:queue", client.seed, cycle).permutation(count)[turn])
        others = [base for base in range(count) if base != first]
        order = torch.randperm(len(others), generator=client.generator("bases")).tolist()
        return [first, *(others[place] for place in order[: self.num_bases[task.tier] - 1])]

    def drawn(self, client: Client) -> Mapping[str, object]:
        return {"bases": self.assigned(client)}

    def regions(self, client: Client) -> Mapping[str, Region]:
        assigned = self.assigned(client)
        absent = [base for base in range(max(self.num_bases)) if base not in assigned]
        return {f"{base}.{name}": NOTHING for base in absent for name in self._base_names}

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        """Yields the client's j-th net as the j-th of those assigned to it."""
        for place, base in enumerate(self.assigned(client)):
            for name in self._base_names:
                yield f"{base}.{name}", upload[f"{place}.{name}"]

    def magnitudes(self, upload: Params, client: Client) -> Tensor:
        return super().magnitudes(dict(self.lift(upload, client)), client)

    def _base(self, seed: int | None = None, *, empty: bool = False) -> nn.Module:
        return self.context.make(self.options.atom, self.options.rounding, seed, empty=empty)

    def _ensemble(self, count: int, *, empty: bool) -> nn.Module:
        rate = self.options.atom if self.options.scaler else 1.0
        bases = (self._base(empty=empty) for _ in range(count))
        return Ensemble(add_scaler(base, rate) for base in bases)

    def net(self, number: int, *, empty: bool = False) -> nn.Module:
        return self._ensemble(self.num_bases[number], empty=empty)

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        """Copies the bases assigned to a client; a level is tested with the first ones."""
        bases: Sequence[int] = range(self.num_bases[number])
        if client is not None and client.task.phase != "test":
            bases = self.assigned(client)
        named = ((f"{place}.{name}", f"{base}.{name}") for place, base in enumerate(bases) for name in self._base_names)
        copy_into(out, {own: published[theirs] for own, theirs in named})

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        return super().train(trainer, client, replace(work, backward=self.backward))

    def backward(self, net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        """Takes the sum of the bases' own losses, base by base: they share no parameter, and only one keeps
        activations."""
        losses = []
        for base in net.module.children():
            losses.append(gradients(loss(net.outputs(base(inputs)), targets)))
        return torch.stack(losses).mean()

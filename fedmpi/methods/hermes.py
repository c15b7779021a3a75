"""Hermes: each client prunes the model to a structured-sparse net of its own and trains and sends only that.

A. Li, J. Sun, P. Li, Y. Pu, H. Li, Y. Chen: Hermes: An Efficient Federated Learning Framework for Heterogeneous Mobile
Clients, MobiCom 2021, doi:10.1145/3447993.3483278. Algorithm 1; eq. 2-3 (group lasso), eq. 4-6 (training under a mask
that only shrinks), eq. 8 and Fig. 5 (aggregation).

Server state: the dense model theta. A client remembers its mask M, a bool for every group that it may prune
(`surgery.groups`). Its round: the accuracy of theta M on its validation examples; if that is above the threshold and
more than the target share of the parameters remains, the groups of lowest norm go; then it trains on its other examples
with the masked weights held at zero, and sends W M and M. Its personal net is theta M; `surgery.cutting` makes it
really smaller.

An entry that the whole cohort holds is averaged. Of every other entry theta keeps its old value and each client its own
(section 3.3, Fig. 5; eq. 9), as in the framework Plato.

Differences from the paper, read with LotteryFL (Li et al., arXiv:2008.03371), by the same authors with the same
symbols, whose code keeps a remaining share:
- `target_share` is the share of parameters that remains in the end, as Table 3's sizes have it; Algorithm 1 prunes
  "while r < r_target". The remaining share rho goes to max(rho (1 - r_p), target), or as little above it as whole
  groups allow. Algorithm 1 has no such limit: `clip_to_target: false`.
- rho is the size of the net that is cut out and deployed (section 5.7), as a share of the dense net; the paper does not
  say which size counts. A channel that no layer writes or no layer reads any more leaves the mask on both sides. The
  cut net has zeros where the mask lacks single columns of a flattened channel, or channels that an addition ties to one
  that is kept, so the mask, which travels, may keep fewer entries than rho says (.25 at .30 of the CNN for EMNIST, .19
  of a narrow ResNet-18). `share_of: mask` counts them, and then inputs of pruned outputs stay.
- Inputs that are the data are in eq. 2, and so in the group lasso, but stay whole, because what is deployed takes
  examples as they come. Nor are the classes' outputs pruned, or what is added to either.
- Every layer is pruned at the same rate: of n groups the j-th goes at rate j / n, ties in the order of the layers. One
  group of each layer stays. A pruned output takes its bias and its BatchNorm entry along.
- Algorithm 1 keeps one theta and sends theta M, which contradicts section 3.3 where clients keep values of their own.
  Where not every client takes part in each round, a client takes of theta what was averaged since it last did; the
  bytes that would tell it what is new are not counted. With `intersection: holders`, LotteryFL's mean, an entry is
  averaged over those who hold it.
- The weights p of eq. 8 are not in the paper: uniform, or the n_k / n of eq. 1 (`weighting: samples`). Nor are lambda,
  1e-4 here, and the shares of training and validation data, 80 / 20 by class. A client with fewer than 4 examples
  validates on what it trains on.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedmpi import seeds
from fedmpi.config.fields import NotNegative, PartialShare, Share, ShareOrZero
from fedmpi.data.batches import Draws, batch_bounds
from fedmpi.data.subset import holdout_size, stratified_holdout
from fedmpi.errors import ConfigError
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, TrainOutcome, step_sizes
from fedmpi.methods.protocol import ROUND, Method, copy_into
from fedmpi.methods.values import (
    Client,
    ClientLoad,
    Contributions,
    Costs,
    LocalWork,
    MethodContext,
    MethodOptions,
    Training,
)
from fedmpi.models.surgery import groups
from fedmpi.models.surgery.cutting import closed, num_params
from fedmpi.models.surgery.groups import Masks, kept_entries, num_held
from fedmpi.tensors import Params, Region, Spec, frozen_values, select, to_device

# Products of shares and counts are whole numbers up to rounding: a remainder below this tolerance counts as zero.
_ROUNDING = 1e-6
# Squares of entries below it vanish in float32; a group of that norm counts as zero.
_LEAST_NORM = 1e-20
OWN = "own.."
"""What the names of a client's own values begin with in its memory, whose round is `ROUND + OWN`."""


class HermesOptions(MethodOptions):
    uploads_nets: ClassVar[bool] = False
    name: str = "hermes"
    """Personal pruned nets, averaged where they overlap (Li et al. 2021)."""
    prune_rate: PartialShare = 0.2
    """r_p: the share of a client's remaining parameters that one pruning takes."""
    target_share: Share = 0.3
    """r_target: the share of the parameters that remains in the end."""
    clip_to_target: bool = True
    """The last pruning stops at `target_share`. false: each takes `prune_rate` while more than `target_share` remains,
    so 0.262 may remain at 0.3.
    """
    share_of: Literal["cut", "mask"] = "cut"
    """What `target_share` counts: the net that is cut out, or the entries of the mask, with the next layers' inputs of
    pruned outputs.
    """
    accuracy_threshold: ShareOrZero = 0.5
    """A client prunes only if its net's validation accuracy is above this; 1 is never."""
    validation_share: Annotated[float, Field(ge=0, le=0.5)] = 0.2
    """Share of each client's examples, class by class, that it validates on instead of training; 0: it validates on
    its training examples.
    """
    group_lasso: NotNegative = 1e-4
    """Lambda of the group lasso on the rows and columns, filters and input channels of all layers."""
    prune_axes: Literal["output", "both"] = "both"
    """What is pruned: filters and rows, or these and the input channels and columns of all layers but the first."""
    intersection: Literal["holders", "all"] = "all"
    """An entry is averaged only if the whole cohort holds it, and clients keep their own values of the others; or over
    those who hold it.
    """
    weighting: Literal["uniform", "samples"] = "uniform"
    """Weight of a client in the mean: the same for all, or its number of examples (n_k / n)."""

    def needs_classes(self) -> dict[str, str]:
        return {"name": "another method, because this one prunes by accuracy"}


class Hermes(Method):
    """theta M_k on each client; theta <- per-entry mean where all of the cohort hold the entry."""

    Options = HermesOptions
    options: HermesOptions
    personal = True

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        net = context.make(empty=True)
        if frozen := frozen_values(net):
            problem = f"{next(iter(frozen))} is not trained, but hermes prunes all layers"
            raise ConfigError("model.trained", f"{problem}; train all of them, or take another method")
        self.structure = groups.follow(net)
        self._keeps_own = self.options.intersection == "all"
        layers = self.structure.layers
        fixed = self.structure.fixed()
        sizes = {f"out.{name}": layer.num_outputs for name, layer in layers.items() if name not in fixed}
        if self.options.prune_axes == "both":
            sizes |= {f"in.{name}": layer.num_inputs for name, layer in layers.items() if not layer.sources <= fixed}
        if not sizes:
            raise ConfigError("model.name", "hermes prunes hidden channels, but this net has none; take another one")
        self._whole = {family: torch.ones(size, dtype=torch.bool) for family, size in sizes.items()}

    def warnings(self) -> tuple[str, ...]:
        least = self.remaining_share({family: mask.cumsum(0) == 1 for family, mask in self._whole.items()})
        if least <= self.options.target_share:
            return ()
        down = f"hermes can prune this net down to {least:.2g} of its parameters only, one group in each layer"
        return (f"{down}: method.target_share {self.options.target_share:g} will not be reached",)

    def remaining_share(self, masks: Masks) -> float:
        """Returns rho, the share of all parameters that the net of these masks has."""
        return self._size_of(masks) / self.structure.num_params

    def _size_of(self, masks: Masks) -> int:
        """Counts what `share_of` says."""
        return self._num_held(masks) if self.options.share_of == "mask" else num_params(self.structure, masks)

    def _num_held(self, masks: Masks) -> int:
        return num_held(self.structure, kept_entries(self.structure, masks))

    # Server half.

    def initial_state(self) -> Params:
        state = super().initial_state()
        versions = {ROUND + name: torch.zeros_like(value, dtype=torch.int32) for name, value in state.items()}
        return state | (versions if self._keeps_own else {})

    def published_specs(self, nets: Collection[int]) -> dict[str, Spec]:
        """Lists theta and, where clients keep own values, the round in which each entry was last averaged."""
        specs = self.state_specs()
        if not self._keeps_own:
            return specs
        return specs | {ROUND + n: Spec(s.shape, torch.int32, s.channels_last) for n, s in specs.items()}

    def regions(self, client: Client) -> Mapping[str, Region]:
        """Returns what the client's new mask keeps."""
        kept = kept_entries(self.structure, client.memory or {})
        return {name: groups.region(axes) for name, axes in kept.items()}

    def lift(self, upload: Params, client: Client) -> Iterator[tuple[str, Tensor]]:
        regions = self.regions(client)
        for name, value in upload.items():
            yield name, select(value, regions[name]) if name in regions else value

    def update(self, state: Params, means: Params, contributions: Contributions) -> Params:
        """Takes the means of Fig. 5; with `all`, entries that a client of the cohort does not hold stay."""
        if not self._keeps_own:
            return super().update(state, means, contributions)
        new = dict(state)
        for name, mean in means.items():
            held_by_all = torch.as_tensor(contributions.shares(name), device=mean.device) == 1
            new[name] = torch.where(held_by_all, mean, state[name])
            new[ROUND + name] = state[ROUND + name].masked_fill(held_by_all, contributions.round_number)
        return new

    def diagnostics(self, state: Params, published: Params, contributions: Contributions) -> Mapping[str, object]:
        """Returns the mean share of the parameters that the cohort's masks keep, by entry and so by client."""
        num_held = 0.0
        for name, shape in self.structure.shapes.items():
            num_held += math.prod(shape) * float(torch.as_tensor(contributions.shares(name)).double().mean())
        return {"mask_share": num_held / self.structure.num_params}

    # Client half.

    def narrow(self, published: Params, number: int, out: Params, client: Client | None = None) -> None:
        """Copies theta M; with `all`, own values where theta has nothing newer."""
        copy_into(out, published)
        if client is None or client.memory is None:
            return
        if self._keeps_own:
            own = to_device({name: client.memory[OWN + name] for name in out}, next(iter(out.values())).device)
            last = int(client.memory[ROUND + OWN])
            for name, value in out.items():
                value.copy_(value.where(published[ROUND + name] >= last, own[name]))
        groups.zeroing(out, kept_entries(self.structure, client.memory))()

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Runs Algorithm 1, lines 12-23."""
        net = trainer.net
        options = self.options
        training, validation = self._parts(client, work)
        masks = self._masks(client)
        may_prune = self.remaining_share(masks) > options.target_share
        if may_prune and self._accuracy(net, work, validation) > options.accuracy_threshold:
            masks = self.pruned(net.params, masks)
        kept = kept_entries(self.structure, masks)
        groups.zeroing(net.params, kept)()
        zero_gradients = groups.zeroing(net.grads, kept)
        client.scratch.update(masks)

        def after_backward(net: FlatNet) -> None:
            if options.group_lasso:
                _add_group_lasso(net, (f"{name}.weight" for name in self.structure.layers), options.group_lasso)
            zero_gradients()

        draws = work.draws(trainer, training)
        return trainer.run(draws, work.lr, work.loss, work.backward, after_backward)

    def _parts(self, client: Client, work: LocalWork) -> tuple[np.ndarray, np.ndarray]:
        """Returns the client's examples for training and for validation, the same in every round."""
        generator = seeds.numpy_generator("holdout", client.seed, client.task.client)
        training, validation = stratified_holdout(
            client.examples, work.data.labels[client.examples], self.options.validation_share, generator
        )
        return training, validation if len(validation) else training

    @torch.no_grad()
    def _accuracy(self, net: FlatNet, work: LocalWork, examples: np.ndarray) -> float:
        """Returns the accuracy of the net as it is, without augmentation."""
        as_stored = Draws(torch.tensor(examples)[None].to(net.device, non_blocking=True))
        bounds = batch_bounds(len(examples), self.context.train.batch_size)
        net.module.eval()
        correct = []
        for piece in bounds:
            inputs, targets = work.data.train_batch(as_stored, 0, *piece)
            correct.append((net.module(inputs).argmax(1) == targets).sum())
        return int(torch.stack(correct).sum()) / len(examples)

    def _masks(self, client: Client) -> Params:
        return {name: value for name, value in (client.memory or {}).items() if value.dtype is torch.bool}

    def pruned(self, params: Params, masks: Masks) -> Params:
        """Returns masks of which as little remains as may: rho (1 - r_p), or the target if that is more."""
        share = self.remaining_share(masks) * (1 - self.options.prune_rate)
        if self.options.clip_to_target:
            share = max(share, self.options.target_share)
        least = math.ceil(share * self.structure.num_params - _ROUNDING)
        old = {family: masks.get(family, whole) for family, whole in self._whole.items()}
        scores = to_device({family: self._scores(params, family) for family in old}, "cpu")
        places, num_groups = groups.order_of_pruning(old, scores)

        def without(count: int) -> Params:
            return {family: mask & (places[family] >= count) for family, mask in old.items()}

        # What remains falls with the number of groups that go: the last number that leaves enough, then
        # whatever still fits.
        counts = range(num_groups + 1)
        count = bisect_right(counts, -least, key=lambda count: -self._size_of(without(count))) - 1
        chosen = self._closed(without(count))
        candidates = {family: chosen[family] for family in old}
        return self._closed(groups.shrunk(candidates, places, num_groups, self._size_of, least))

    def _closed(self, masks: Masks) -> Params:
        return dict(masks) if self.options.share_of == "mask" else closed(self.structure, masks)

    def _scores(self, params: Params, family: str) -> Tensor:
        axis, _, layer = family.partition(".")
        weight = params[f"{layer}.weight"]
        return torch.linalg.vector_norm(weight, 2, _all_but(0 if axis == "out" else 1, weight))

    def remember(self, net: FlatNet, client: Client) -> Params:
        """Returns the mask; with `all` also the client's values, and the round that they are of."""
        if not self._keeps_own:
            return client.scratch
        own = {OWN + name: value for name, value in net.params.items()}
        return client.scratch | own | {ROUND + OWN: torch.tensor(client.task.round_number, dtype=torch.int32)}

    # What it would cost real clients: the parameters that they hold, and a bit for each that there is.

    def count_training(self, turn: ClientLoad) -> Training:
        """Counts steps under the new mask and, while a client may prune, a test of its net before; in a plan with
        nothing pruned."""
        num_examples = round(turn.num_examples)
        held_out = holdout_size(num_examples, self.options.validation_share)
        sizes = step_sizes(self.context.train, num_examples - held_out, turn.share)
        passes = list(Training.of(turn.tier, sizes).passes)
        masks = self._masks(turn.client) if turn.client else {}
        share = self.remaining_share(masks) if masks else 1.0
        if share > self.options.target_share:
            bounds = batch_bounds(held_out or num_examples, self.context.train.batch_size)
            tested = [stop - start for start, stop in bounds]
            passes += [replace(step, backward=False) for step in Training.of(turn.tier, tested).passes]
        held = kept_entries(self.structure, turn.client.scratch if turn.client else {})
        kept = {}
        for name in self.structure.layers:
            shape = self.structure.shapes[f"{name}.weight"]
            weight_alone = replace(self.structure, shapes={f"{name}.weight": shape})
            kept[name] = (num_held(weight_alone, held), math.prod(shape))
        # For either axis the group lasso reads a weight twice, and adds to its gradient.
        lasso = 8 * sum(left for left, _ in kept.values()) if self.options.group_lasso else 0
        return Training(tuple(passes), len(sizes), lasso, kept=kept)

    def costs(self, turn: ClientLoad) -> Costs:
        """Counts what the masks keep; in a plan with nothing pruned."""
        masks = (turn.client.memory or {}, turn.client.scratch) if turn.client else ({}, {})
        down, up = (4 * self._num_held(held) for held in masks)
        return Costs(down, up + math.ceil(self.structure.num_params / 8))


def _all_but(axis: int, tensor: Tensor) -> list[int]:
    return [other for other in range(tensor.dim()) if other != axis]


def _add_group_lasso(net: FlatNet, names: Iterable[str], lambda_: float) -> None:
    """Adds the gradient of eq. 2, W / |group| along outputs and along inputs, times lambda; 0 for a group of zeros."""
    for name in names:
        weight = net.params[name]
        for axis in (0, 1):
            norms = torch.linalg.vector_norm(weight, 2, _all_but(axis, weight), keepdim=True).clamp_(min=_LEAST_NORM)
            net.grads[name].addcdiv_(weight, norms, value=lambda_)

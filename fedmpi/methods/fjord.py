"""FjORD: every mini-batch trains a random width that the client can afford (ordered dropout).

S. Horvath, S. Laskaridis, M. Almeida, I. Leontiadis, S. I. Venieris, N. D. Lane: FjORD: Fair and Accurate Federated
Learning under heterogeneous targets with Ordered Dropout, NeurIPS 2021, arXiv:2102.13451. Sections 3.1 (ordered
dropout), 3.2 (eq. 1: distillation) and 4 (Algorithm 1, eq. 2: aggregation).

Server state: the net of the largest width. A client of capacity p_max gets ceil(p_max n) leading channels of every
layer and draws for each mini-batch a width p <= p_max, the same for all layers, uniformly; linear layers have as many
inputs as arrive. Each entry becomes the mean, weighted by samples, over the clients whose p_max covers it.

Differences from the paper, and from its authors' baseline (adap/flower, baselines/fjord):
- Nets keep no running statistics for each width to send: a width is tested with statistics of its own
  (`evaluation.bn`). The affine of BatchNorm is one for all widths, each with its leading entries, as in the baseline.
- Distillation is eq. 1, (1 - alpha) CE(SM_p, y) + alpha KL(SM_p, SM_pmax, T), beside p_max's own CE in the same step
  ("always backpropagating also the teacher network"). The KL is that from p_max to p, as the cross-entropy against
  p_max's detached outputs, which has the same gradient; so it is in the baseline. It is times T^2, as in Hinton et al.,
  whose T eq. 1 takes. Alpha = T = 1 is the paper's choice and the baseline's. All logits are compared, also where
  `train.masked_loss` masks the labels' loss. The loss in the records is p_max's.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import cycle, islice

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedmpi.config.fields import Positive, ShareOrZero, Shares
from fedmpi.federation.assignment import Task
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, Loss, TrainOutcome, gradients, step_sizes
from fedmpi.methods.values import Client, ClientLoad, LocalWork, Passes, Training, generator_of
from fedmpi.methods.widths import WidthMethod, WidthOptions
from fedmpi.models.surgery.groups import Index
from fedmpi.models.surgery.nested import nested_parts
from fedmpi.strided import subsample_before_narrow_convs
from fedmpi.tensors import Params, select


class FjordOptions(WidthOptions):
    name: str = "fjord"
    """Ordered dropout: a random affordable width in every step (Horvath et al. 2021)."""
    widths: Shares = (1.0, 0.8, 0.6, 0.4, 0.2)
    """The widths p, largest first: each is the p_max of one tier, and clients draw from those up to theirs."""
    distillation: bool = False
    """Train p_max on the labels and the sampled width on p_max's outputs, in every step."""
    distillation_weight: ShareOrZero = 1.0
    """Alpha: the share of p_max's outputs in the sampled width's loss; labels have the rest."""
    distillation_temperature: Positive = 1.0
    """T: divides both outputs before the softmax."""

    def needs_classes(self) -> dict[str, str]:
        return {"distillation": "false"} if self.distillation else {}


class Fjord(WidthMethod):
    """Ordered dropout; means over the clients that cover an entry, weighted by samples."""

    Options = FjordOptions
    options: FjordOptions

    def client_weight(self, task: Task) -> float:
        return float(task.num_examples)

    def count_training(self, turn: ClientLoad) -> Training:
        """Counts steps of the drawn widths; where they are not drawn yet, of each width equally many."""
        sizes = step_sizes(self.context.train, turn.num_examples, turn.share)
        numbers: Iterator[int] = cycle(range(turn.tier, len(self.tiers)))
        if turn.task is not None:
            numbers = self._draw_nets(turn.task, self._most_steps(turn.task))
        counts = Counter(zip(numbers, sizes, strict=False))
        if self.options.distillation:  # the tier's net passes in each step, too
            counts.update((turn.tier, size) for size in sizes)
        passes = [Passes(net, size, count) for (net, size), count in sorted(counts.items())]
        return Training(tuple(passes), len(sizes))

    def train(self, trainer: LocalTrainer, client: Client, work: LocalWork) -> TrainOutcome:
        """Trains by SGD with a width for each step, all of them drawn beforehand."""
        numbers = self._draw_nets(client.task, self._most_steps(client.task))
        tier = client.task.tier

        def step(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
            return self._step(net, inputs, targets, loss, tier, next(numbers))

        return super().train(trainer, client, replace(work, backward=step))

    def _most_steps(self, task: Task) -> int:
        """Returns as many as batches of one example would take, so that a step's width depends on no batch size."""
        train = self.context.train
        return train.local_steps or train.local_epochs * task.num_examples

    def _draw_nets(self, task: Task, num_draws: int) -> Iterator[int]:
        """Returns the net of each step: the client's own or a narrower one."""
        generator = generator_of(task, self.context.seed, "widths")
        return iter(torch.randint(task.tier, len(self.tiers), (num_draws,), generator=generator).tolist())

    def drawn(self, client: Client) -> Mapping[str, object]:
        """Returns the width of each step."""
        numbers = self._draw_nets(client.task, self._most_steps(client.task))
        sizes = step_sizes(self.context.train, len(client.examples), client.task.share)
        return {"widths": [self.options.widths[number] for number in islice(numbers, len(sizes))]}

    def _step(self, net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss, tier: int, number: int) -> Tensor:
        """Computes the gradients of one mini-batch, of net `number` within that of the tier."""
        if not self.options.distillation:
            return gradients(loss(self._logits(net, inputs, tier, number), targets))
        teacher = net.module(inputs)
        value = gradients(loss(teacher, targets))
        student = self._logits(net, inputs, tier, number)
        alpha = self.options.distillation_weight
        distance = alpha * self._distance(student, teacher.detach())
        gradients(distance if alpha == 1 else distance + (1 - alpha) * loss(student, targets))
        return value

    def _distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Returns T^2 times the cross-entropy of the student against the teacher, both at temperature T."""
        temperature = self.options.distillation_temperature
        soft = (teacher.float() / temperature).softmax(1)
        return temperature**2 * cross_entropy(student.float() / temperature, soft)

    def _logits(self, net: FlatNet, inputs: Tensor, tier: int, number: int) -> Tensor:
        """Returns the outputs of net `number`, computed with the leading entries of the tier's parameters.

        Gradients flow into those.
        """
        if number == tier:
            logits: Tensor = net.module(inputs)
            return logits
        parts: Params = dict(net.module.named_parameters())
        parts |= {name: select(parts[name], held) for name, held in self._parts_within[tier][number].items()}
        parts |= {name: value.to(inputs.device) for name, value in self._skeletons[number].named_buffers()}
        nested: Tensor = functional_call(self._skeletons[number], parts, (inputs,))
        return net.outputs(nested)

    @cached_property
    def _skeletons(self) -> list[nn.Module]:
        skeletons = [self.net(number, empty=True) for number in range(len(self.tiers))]
        for skeleton in skeletons:
            subsample_before_narrow_convs(skeleton)
        return skeletons

    @cached_property
    def _parts_within(self) -> list[list[dict[str, tuple[Index, ...]]]]:
        """Lists by [tier][net] the net's part of the tier's parameters, for nets no wider than the tier's."""
        parts = []
        for wide in self._skeletons:
            parts.append([nested_parts(wide, narrow) for narrow in self._skeletons])
        return parts

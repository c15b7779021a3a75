"""Makes the plain net of a tier or of a client, with the accuracy that its file must have.

A net comes as a user of torch expects it: in eval mode, BatchNorm statistics in buffers, no hooks of training, an
LSTM's gates in torch's own matrices, adapters merged into their layers. Factorized layers stay as two (`<layer>.u`,
then `<layer>.v`), or become the plain layer whose weight is their product. A tier's net has the BatchNorm statistics
that the round was tested with. Where these were each test batch's own, or are not in the checkpoint, they are estimated
here as a test does it.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmpi import seeds
from fedmpi.data.batches import batch_bounds
from fedmpi.errors import ConfigError
from fedmpi.export.saved import SavedRound
from fedmpi.learning.bn import batch_norms, num_statistics
from fedmpi.learning.evaluate import own_statistics, points_of, test_nets
from fedmpi.learning.flat import FlatNet
from fedmpi.lowrank.adapter import Adapter
from fedmpi.lowrank.modules import GATES, LowRank
from fedmpi.methods.hermes import Hermes
from fedmpi.models.nets.lstm import Lstm
from fedmpi.models.surgery.cutting import cut
from fedmpi.models.surgery.groups import Masks
from fedmpi.report.records import net_scores, score_of
from fedmpi.rounds.evaluate import client_net
from fedmpi.rounds.publish import share_versions
from fedmpi.rounds.state import Setup, client_of, personal_task, reestimates
from fedmpi.strided import as_torch_has_it
from fedmpi.tensors import linear_of


@dataclass(frozen=True)
class Accuracy:
    """How many of its test examples a net gets right, with the statistics that it is exported with."""

    correct: int
    num_tested: int
    reported: float | None = None
    """What the run has measured; None where it has not tested this net."""
    in_batches: bool = False
    """Whether the reported one was measured with the statistics of each test batch."""

    @property
    def share(self) -> float:
        return self.correct / max(1, self.num_tested)


@dataclass(frozen=True)
class TrainedNet:
    """A net to export."""

    saved: SavedRound
    name: str
    """`tier 0.25`, or `client 17`."""
    form: str
    """`factorized` where layers run as two, else `dense`."""
    net: nn.Module
    """In eval mode, with statistics; (B, ...) -> logits (B, num_classes)."""
    accuracy: Accuracy
    test_examples: Tensor
    """Numbers of the test examples that the accuracy is about, int64."""
    masks: Masks | None = None
    """Which channels the client has pruned; None where its method prunes none."""
    is_cut: bool = False
    """Whether pruned rows and columns are gone; the accuracy is then the uncut net's."""

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields inputs and labels of the test, in the batches in which the run tests."""
        data = self.saved.setup.data
        size = self.saved.setup.config.evaluation.batch_size
        for start, stop in batch_bounds(len(self.test_examples), size):
            yield data.test_batch_of(self.test_examples[start:stop])

    def example(self) -> Tensor:
        """Returns two inputs, laid out in memory as those of a test."""
        inputs = self.saved.setup.data.test_batch(0, 2)[0]
        return inputs if len(inputs) == 2 else inputs.repeat_interleave(2, 0)


def tier_name(tier: str | float) -> str:
    """Returns `0.5` for 0.5, as the records have it."""
    return tier if isinstance(tier, str) else f"{tier:g}"


def net_of(saved: SavedRound, tier: str | None, client: int | None, *, dense: bool = False) -> TrainedNet:
    """Returns the net of a client, or of a tier (both None: the only one). Raises `UserError`."""
    if client is None:
        return net_of_tier(saved, tier, dense=dense)
    if tier is not None:
        raise ConfigError("--client", f"a net is of a client or of a tier, got both client {client} and tier {tier}")
    return net_of_client(saved, client, dense=dense)


def net_of_tier(saved: SavedRound, tier: str | None = None, *, dense: bool = False) -> TrainedNet:
    """Returns the net of this name in the records; None for the only one. Raises ConfigError with the names.

    Its factorized layers stay as two, as clients have them, unless it is to be `dense`.
    """
    nets = _nets(saved)
    if tier is None and len(saved.setup.method.tested()) == 1:
        tier = next(iter(nets))
    if tier not in nets:
        problem = "which net?" if tier is None else f"no net {tier!r};"
        raise ConfigError("--tier", f"{problem} allowed: {_names(saved)}")
    flat = saved.setup.trainers[nets[tier]].net
    saved.setup.method.narrow(saved.published.params, nets[tier], flat.params)
    accuracy, statistics = _tested(saved, tier, flat)
    net, form = plain(flat, statistics, dense=dense)
    return TrainedNet(saved, f"tier {tier}", form, net, accuracy, torch.arange(accuracy.num_tested))


def net_of_client(saved: SavedRound, client: int, *, dense: bool = False) -> TrainedNet:
    """Returns the net that this client is tested with: out of its memory, adapted, with statistics of its own data.
    Raises ConfigError for one that has none.
    """
    setup = saved.setup
    number = saved.number
    tests = setup.personal_tests
    count = setup.config.clients.count
    if not 0 <= client < count:
        raise ConfigError("--client", f"{client}; allowed: 0 to {count - 1}")
    if tests is None:
        name = setup.config.method.name
        raise ConfigError("--client", f"clients of {name} have no nets of their own; export a tier: {_names(saved)}")
    task = personal_task(setup, client, number)
    if not task.num_examples:
        raise ConfigError("--client", f"client {client} has no training examples, so no net of its own")
    published = replace(saved.published, versions=share_versions(setup, saved.state, [task]))
    flat, restat = client_net(setup, task, published)
    own = torch.tensor(tests.client(client))
    size = setup.config.evaluation.batch_size
    in_batches = num_statistics(flat.module) > 0 and not (reestimates(setup.config, number) or len(own) == 1)
    accuracy = _tested_by_client(setup, flat, own, restat, in_batches)
    net, form = plain(flat, own_statistics(flat, setup.data, *restat, size), dense=dense)
    masks = None
    if isinstance(setup.method, Hermes):
        masks = client_of(setup, task, published).memory or {}
    return TrainedNet(saved, f"client {client}", form, net, accuracy, own, masks)


def _tested_by_client(
    setup: Setup, flat: FlatNet, own: Tensor, restat: tuple[np.ndarray, int], in_batches: bool
) -> Accuracy:
    """Returns the accuracy of a client's net that is in place."""
    scoring = setup.evaluation.scoring
    size = setup.config.evaluation.batch_size
    points = points_of(flat, setup.data, scoring, own, size, restat)
    as_tested = points_of(flat, setup.data, scoring, own, size, None) if in_batches else points
    reported = scoring.score(as_tested, scoring.num_counted(own.cpu().numpy())) if len(own) else None
    if scoring.task != "classification":
        return Accuracy(0, 0, reported, in_batches)
    return Accuracy(int(points), len(own), reported, in_batches)


def _tested(saved: SavedRound, name: str, flat: FlatNet) -> tuple[Accuracy, Tensor | None]:
    """Returns the accuracy of a tier's net that is in place, and the statistics that it has it with."""
    setup = saved.setup
    scores = net_scores(saved.record).get(name)
    reported = score_of(scores) if scores else None
    wanted = num_statistics(flat.module)
    found = saved.snapshot.statistics.get(name)
    num_test = setup.data.info.num_test
    if setup.data.info.task != "classification":
        num_test = 0  # nothing is right or wrong
    if reported is not None and (found is not None or not wanted):
        return Accuracy(round(reported * num_test), num_test, reported), found
    (score,) = test_nets(
        replace(setup.evaluation, costs=(1.0,), num_statistics=(wanted,)),
        lambda _: flat,
        setup.data,
        setup.comm.allreduce_sum,
        worker=0,
        num_workers=1,
        restat_seed=lambda batch: seeds.mix("restat", setup.config.seed, saved.number, batch),
    )
    in_batches = wanted > 0 and reported is not None and not reestimates(setup.config, saved.number)
    return Accuracy(round(score.accuracy * num_test), num_test, reported, in_batches), score.statistics


def _nets(saved: SavedRound) -> dict[str, int]:
    """Maps names to numbers: of nets that are tested, then of tiers that are not; none where clients have their own."""
    method = saved.setup.method
    tested = {net.name: net.index for net in method.tested()}
    return tested | {tier.name: tier.index for tier in method.tiers if tested and tier.name not in tested}


def _names(saved: SavedRound) -> str:
    allowed = []
    if nets := _nets(saved):
        allowed.append(f"--tier={', '.join(nets)}")
    if saved.setup.personal_tests is not None:
        allowed.append(f"--client=0 to {saved.setup.config.clients.count - 1}")
    return ", or ".join(allowed)


def cut_net(trained: TrainedNet) -> TrainedNet:
    """Returns the same answers up to float rounding, from smaller layers. Raises ConfigError if nothing is pruned."""
    if trained.masks is None:
        raise ConfigError("--cut", f"{trained.name} is not pruned; only the nets of hermes's clients are (--client=N)")
    return replace(trained, net=cut(trained.net, trained.masks).requires_grad_(False), is_cut=True)


def plain(flat: FlatNet, statistics: Tensor | None, *, dense: bool) -> tuple[nn.Module, str]:
    """Returns a copy of the net and its form, with `statistics` (num_statistics,) in its BatchNorms, if it has any."""
    net = copy.deepcopy(flat.module)
    for value in net.parameters():
        value.data = value.data.clone(memory_format=torch.contiguous_format)
    for part in [*net.modules()]:
        _remove_our_hooks(part)
        as_torch_has_it(part)
        if isinstance(part, nn.LSTM):
            _close(part)
    form = "factorized" if factorized_layers(net) and not dense else "dense"
    if form == "dense":
        for name, part in [*net.named_modules()]:
            if isinstance(part, (LowRank, Adapter)):
                net.set_submodule(name, _multiplied_out(part))
    if statistics is not None:
        _put(net, statistics)
    return net.eval().requires_grad_(False), form


def factorized_layers(net: nn.Module) -> list[str]:
    """Returns the names of the layers that run as two; an LSTM's gates do not, because their products run."""
    gates = tuple(f"{name}." for name, part in net.named_modules() if isinstance(part, nn.LSTM))
    found = [name for name, part in net.named_modules() if isinstance(part, LowRank)]
    return [name for name in found if not name.startswith(gates)]


def _remove_our_hooks(part: nn.Module) -> None:
    """Leaves those of the user's own net: some (torch's spectral norm) compute its weights."""
    for hooks in (part._forward_hooks, part._forward_pre_hooks):
        for key in [key for key, hook in hooks.items() if hook.__module__.startswith("fedmpi.")]:
            del hooks[key]


def _close(lstm: nn.LSTM) -> None:
    """Puts each of its matrices in one tensor again, as torch stacks the gates; the class is torch's own."""
    for name, gates in [*lstm.named_children()]:
        weights = [getattr(gates, gate).weight.detach() for gate in GATES]
        del lstm._modules[name]
        vars(lstm).pop(f"weight_{name}", None)
        setattr(lstm, f"weight_{name}", nn.Parameter(torch.cat(weights)))
    if type(lstm) is Lstm:  # its forward only serves training and counting
        object.__setattr__(lstm, "__class__", nn.LSTM)


def _multiplied_out(layer: LowRank | Adapter) -> nn.Module:
    """Returns the plain layer of the same outputs, up to float rounding."""
    if isinstance(layer, Adapter):
        return layer.merged()
    weight = layer.weight.detach()
    bias = layer.bias
    if weight.dim() == 2:
        return linear_of(weight, bias)
    geometry: Any = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation")}
    conv = nn.Conv2d(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta", **geometry)
    conv.weight = nn.Parameter(weight.clone())
    if bias is not None:
        conv.bias = nn.Parameter(bias.detach().clone())
    return conv


def _put(net: nn.Module, statistics: Tensor) -> None:
    for layer in batch_norms(net):
        mean, variance, statistics = statistics.tensor_split([layer.num_features, 2 * layer.num_features])
        layer.running_mean = mean.clone()
        layer.running_var = variance.clone()
        layer.num_batches_tracked = torch.zeros((), dtype=torch.int64)
        layer.track_running_stats = True

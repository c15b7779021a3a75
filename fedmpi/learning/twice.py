"""Before a run: the same client is trained and tested twice, with another one in between, and must give the same bits.

A rank trains one client after another with the same modules. Parameters are loaded, momentum is
zeroed and the global generators are seeded for each client. Anything else that a net keeps (a buffer
that training changes, a Python attribute, a generator of its own) would make the results depend on
who was trained before on the same rank, that is, on the number of ranks, and nobody would notice.

The check takes two steps with two real examples each, through the same `LocalTrainer` as the run. Its
second pass uses a net that is built anew and trains another client first, so that it also finds what
a net keeps from its very first batch.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedmpi import costs, seeds
from fedmpi.data.batches import DeviceData, Draws
from fedmpi.errors import ConfigError
from fedmpi.learning import bn
from fedmpi.learning.determinism import global_generator
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, MaskedCrossEntropy, plain_step
from fedmpi.models import admission
from fedmpi.tensors import bytes_of

BATCH_SIZE, LR = 2, 0.01
# The other client's steps are an odd number, or a net that alternates would go unnoticed.
STEPS = 2, 1
KEEPS = (
    "keeps something beside its parameters, draws from a generator of its own or is not deterministic, so results "
    "would depend on the number of ranks; remove that, or draw from the global generators of torch, Python or numpy"
)

Calls = dict[tuple[str, int], tuple[str, str]]
"""The calls of a net's modules, innermost first. A module's dotted name, and how often it was called before: digests of
its inputs (parameters included) and of its outputs."""
Watch = Callable[[nn.Module], AbstractContextManager[Calls]]


def refuse_changing_buffers(net: nn.Module, model: str, example_shape: tuple[int, ...]) -> None:
    """Raises `ConfigError` if a pass in training mode changes a buffer of `net` in place (a skeleton, left as it is).

    A dry run without data, for plans; what it cannot see is left to `check_nets`.
    """
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    handles = [
        # First of all hooks: spectral norm changes its vectors in one of its own.
        net.register_forward_pre_hook(lambda net, _: before.update(_versions(net)), prepend=True),
        net.register_forward_hook(lambda net, *_: after.update(_versions(net))),
    ]
    if any(True for _ in net.buffers()):
        costs.in_dry_runs(net, example_shape, lambda dry_run: dry_run(costs.EXAMPLES))
    for handle in handles:
        handle.remove()
    for name in before:
        if before[name] != after.get(name, before[name]):
            raise _changed(model, net, name)


def _versions(net: nn.Module) -> dict[str, int]:
    """How often each buffer was written to."""
    return {name: buffer._version for name, buffer in net.named_buffers()}


def _changed(model: str, net: nn.Module, buffer: str) -> ConfigError:
    module, _, name = buffer.rpartition(".")
    why = f"changes its buffer {name!r} in training, which the next client on the same rank would inherit"
    return admission.refusal(model, net, module, f"{why}; take a layer that keeps nothing between batches")


def check_nets(
    trainers: Sequence[LocalTrainer],
    make_net: Callable[[int], nn.Module],
    macs: Sequence[float],
    examples: np.ndarray,
    seed: int,
    model: str,
) -> str:
    """Trains and tests a client twice; a digest of its results, the same on all ranks whose processors are alike.

    `make_net` makes the net of the trainer of a number anew. Of nets that are made of the same kinds of
    modules the cheapest is tried. Nothing is left behind: the generators are as before, the buffers of
    the trainers are zero. Raises `ConfigError`.
    """
    digests = []
    for number in _to_try(trainers, macs):
        net = trainers[number].net
        clients = np.split(np.resize(examples, sum(STEPS) * BATCH_SIZE), [STEPS[0] * BATCH_SIZE])
        trial = _Trial(trainers[number], clients, seed, initial_values(net, seed))
        with global_generator(trial.seed_of(2), trial.data.device):
            try:
                digests.append(_check_net(trial, partial(make_net, number), model))
            except RuntimeError as error:
                if not (why := _fault_of_net(str(error))):
                    raise
                raise ConfigError("model.name", f"'{model}': {why}") from None
        net.clear()
        net.module.train()
    return " ".join(digests)


def _fault_of_net(error: str) -> str:
    """What torch says that a dry run does not show; empty for what may be no fault of the net."""
    if error.startswith("view size is not compatible"):
        return "images lie in memory with their channels last, where x.view fails; write x.flatten(1) or x.reshape"
    return error.partition(". ")[0] if "deterministic" in error else ""


def _to_try(trainers: Sequence[LocalTrainer], macs: Sequence[float]) -> Iterator[int]:
    """Numbers of nets, the cheapest first, until all kinds of modules have been met."""
    met: set[type[nn.Module]] = set()
    for number in sorted(range(len(trainers)), key=lambda number: macs[number]):
        kinds = {type(part) for part in trainers[number].net.module.modules()}
        if not kinds <= met:
            yield number
            met |= kinds


def initial_values(net: FlatNet, seed: int) -> Tensor:
    """Initial values of the size that keeps activations near 1, as bytes. A net's own come from the server."""
    generator = seeds.torch_generator("self-check values", seed)
    for value in net.params.values():
        if value.dim() > 1:
            bound = math.sqrt(6 / value[0].numel())
            value.copy_(torch.empty(value.shape).uniform_(-bound, bound, generator=generator))
        else:
            value.fill_(1.0)
    return net.copy_of_parameters()


@dataclass(frozen=True)
class _Trial:
    """Two clients of a few examples each, and what both begin with."""

    trainer: LocalTrainer
    clients: Sequence[np.ndarray]
    seed: int
    initial: Tensor

    @property
    def data(self) -> DeviceData:
        return self.trainer.data

    def seed_of(self, number: int) -> int:
        return seeds.mix("self-check", self.seed, number)

    def train(self, net: FlatNet, client: int) -> Tensor:
        """The steps of client 0 or 1 from the initial values; the parameters after them, as bytes."""
        net.copy_parameters_from(self.initial)
        seed = self.seed_of(client)
        draws = self.data.draws(self.clients[client], 1, torch.Generator().manual_seed(seed))
        with global_generator(seed, self.data.device):
            trainer = self.trainer.with_net(net, BATCH_SIZE)
            trainer.run(draws, LR, MaskedCrossEntropy(None), plain_step, lambda net: None)
        return net.copy_of_parameters()

    def test(self, net: FlatNet, trained: Tensor) -> Tensor:
        """Outputs in evaluation mode with these parameters, on a batch of client 0. Tests seed no generator."""
        net.copy_parameters_from(trained)
        as_stored = Draws(torch.tensor(self.clients[0][None, :BATCH_SIZE], device=self.data.device))
        with bn.using(net.module, None), torch.no_grad():
            return net.module(self.data.train_batch(as_stored, 0, 0, BATCH_SIZE)[0]).clone()


@dataclass(frozen=True)
class _Pair:
    """What should be the same twice, and the modules' calls on the way."""

    one: Tensor
    two: Tensor
    calls: tuple[Calls, Calls]
    what: str

    @property
    def is_same(self) -> bool:
        return torch.equal(bytes_of(self.one), bytes_of(self.two))


def _check_net(trial: _Trial, make_net: Callable[[], nn.Module], model: str) -> str:
    """A digest of the client's results. Raises `ConfigError`."""
    net = trial.trainer.net
    again = net.with_module(make_net())
    constants = {name: value.clone() for name, value in net.module.named_buffers()}
    for name, value in again.module.named_buffers():
        if not torch.equal(bytes_of(constants[name]), bytes_of(value)):
            module, _, buffer = name.rpartition(".")
            problem = f"has other values in its buffer {buffer!r} each time it is made; make them the same each time"
            raise admission.refusal(model, net.module, module, problem)
    pairs = list(_pairs(trial, net, again, lambda module: nullcontext({})))
    for name, value in net.module.named_buffers():
        if name in constants and not torch.equal(bytes_of(constants[name]), bytes_of(value)):
            raise _changed(model, net.module, name)
    if all(pair.is_same for pair in pairs):
        return _digest(pair.one for pair in pairs)
    one_step = replace(trial, clients=[examples[:BATCH_SIZE] for examples in trial.clients])
    for watched in trial, one_step:
        pairs = [*_pairs(watched, net.with_module(make_net()), net.with_module(make_net()), _watching), *pairs]
    module, what = _culprit(net, [pair for pair in pairs if not pair.is_same])
    raise admission.refusal(model, net.module, module, f"{what} {KEEPS}")


def _pairs(trial: _Trial, net: FlatNet, again: FlatNet, watch: Watch) -> Iterator[_Pair]:
    """Client 0 first in `net`; client 1, then client 0 in `again`. Tests with client 0's parameters before the last."""
    with watch(net.module) as calls:
        first = trial.train(net, 0)
    with watch(net.module) as test_calls:
        tested = trial.test(net, first)
    trial.train(again, 1)
    with watch(again.module) as calls_then:
        yield _Pair(tested, trial.test(again, first), (test_calls, calls_then), "tests")
    with watch(again.module) as calls_then:
        yield _Pair(first, trial.train(again, 0), (calls, calls_then), "training")


def _culprit(net: FlatNet, different: Sequence[_Pair]) -> tuple[str, str]:
    """The dotted name of the module at fault, and what it does."""
    for pair in different:
        for call, (inputs, outputs) in pair.calls[0].items():
            then = pair.calls[1].get(call, ("", ""))
            # Of the modules that got the same, this is the smallest.
            if inputs == then[0] and outputs != then[1]:
                return call[0], f"gives other results in {pair.what} the second time: it"
    for pair in different:  # a backward pass goes from the last parameter to the first
        if pair.what == "training":
            one, two = net.layout.views(pair.one), net.layout.views(pair.two)
            names = [name for name, _ in net.module.named_parameters()]
            last = next(name for name in reversed(names) if not torch.equal(bytes_of(one[name]), bytes_of(two[name])))
            return last.rpartition(".")[0], "gets other gradients the second time: it or a module behind it"
    return "", f"gives other results in {different[0].what} the second time: it"


@contextmanager
def _watching(net: nn.Module) -> Iterator[Calls]:
    """Within the block, the calls of all modules are noted, each when it ends."""
    calls: Calls = {}
    begun: list[str] = []
    counts: Counter[str] = Counter()

    def begin(module: nn.Module, inputs: object, kwargs: object) -> None:
        begun.append(_digest(costs.tensors_in([inputs, kwargs, *module.parameters()])))

    handles = []
    for name, module in net.named_modules():

        def end(module: nn.Module, inputs: object, outputs: object, name: str = name) -> None:
            calls[name, counts[name]] = begun.pop(), _digest(costs.tensors_in(outputs))
            counts[name] += 1

        handles += [
            module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True),
            module.register_forward_hook(end),
        ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(bytes_of(tensor).cpu().numpy().data)
    return digest.hexdigest()

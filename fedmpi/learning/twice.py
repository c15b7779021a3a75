"""Before a run: the same client is trained and tested twice, with another one in between, and must give the same bits.

A rank trains one client after another with the same modules. Parameters are loaded, momentum is zeroed and the global
generators are seeded for each client. Anything else that a net keeps (a buffer that training changes, a Python
attribute, a generator of its own) would make the results depend on who was trained before on the same rank, that is, on
the number of ranks, and nobody would notice.

The check takes two steps with two real examples each, through the same `LocalTrainer` as the run. Its second pass uses
a net that is built anew and trains another client first, so that it also finds what a net keeps from its first batch.
A counter in a plain attribute changes no result for a while, so the attributes are compared, too.
"""

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmpi import seeds
from fedmpi.data.batches import Draws
from fedmpi.errors import ConfigError, UserError, as_one_line
from fedmpi.learning import bn
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import LocalTrainer, loss_of, plain_step
from fedmpi.models import create
from fedmpi.models.pretrained import digest_of
from fedmpi.models.surgery.narrowing import fill
from fedmpi.models.trial import fault_of_net
from fedmpi.tensors import bytes_of

BATCH_SIZE = 2
LR = 0.01
# The other client's steps are an odd number, or a net that alternates would go unnoticed.
STEPS = (2, 1)
KEEPS = (
    "the second time: it keeps something beside its parameters, draws from a generator of its own or is not "
    "deterministic, so results would depend on the number of ranks; remove that, or draw from the global generators of "
    "torch, Python or numpy"
)
CHANGES = (
    "in training, which the next client on the same rank would inherit; take a layer that keeps nothing between batches"
)

_OF_TORCH = frozenset(vars(nn.Module()))

Attributes = dict[tuple[str, str], object]


def check_nets(
    trainers: Sequence[LocalTrainer],
    make_net: Callable[[int], nn.Module],
    macs: Sequence[float],
    examples: np.ndarray,
    seed: int,
    model: str,
) -> str:
    """Trains and tests a client twice; returns a digest of its results, the same on all ranks with like processors.

    `make_net` makes the net of the trainer of a number anew. Of nets that are made of the same kinds of modules the
    cheapest is tried. Leaves nothing behind: the generators are as before, the buffers of the trainers are zero. Raises
    `ConfigError`.
    """
    digests = []
    for number in _to_try(trainers, macs):
        net = trainers[number].net
        clients = np.split(np.resize(examples, sum(STEPS) * BATCH_SIZE), [STEPS[0] * BATCH_SIZE])
        fill(net.params.values(), seeds.torch_generator("self-check values", seed))
        trial = _Trial(trainers[number], clients, seed, net.parameter.clone())
        with seeds.global_generators(trial.seed_of(2), trial.trainer.data.device):
            try:
                digests.append(_check_net(trial, partial(make_net, number), model))
            except (UserError, MemoryError, torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except Exception as error:
                why = fault_of_net(str(error)) or f"it fails as the method trains it: {as_one_line(error)}"
                raise ConfigError("model.name", f"'{model}': {why}") from error
        net.parameter.zero_()
        net.gradient.zero_()
        net.reset_momentum()
        net.module.train()
    return " ".join(digests)


def _to_try(trainers: Sequence[LocalTrainer], macs: Sequence[float]) -> Iterator[int]:
    """Yields numbers of nets, the cheapest first, until all kinds of modules have been met."""
    met: set[type[nn.Module]] = set()
    for number in sorted(range(len(trainers)), key=lambda number: macs[number]):
        kinds = {type(part) for part in trainers[number].net.module.modules()}
        if not kinds <= met:
            yield number
            met |= kinds


@dataclass(frozen=True)
class _Trial:
    """Two clients of a few examples each, and the values that both begin with."""

    trainer: LocalTrainer
    clients: Sequence[np.ndarray]
    seed: int
    initial: Tensor

    def seed_of(self, number: int) -> int:
        return seeds.mix("self-check", self.seed, number)

    def train(self, net: FlatNet, client: int) -> Tensor:
        """Takes the steps of client 0 or 1 from the initial values; returns the parameters after them."""
        net.parameter.copy_(self.initial)
        seed = self.seed_of(client)
        draws = self.trainer.data.draws(self.clients[client], 1, torch.Generator().manual_seed(seed))
        with seeds.global_generators(seed, self.trainer.data.device):
            trainer = self.trainer.with_net(net, BATCH_SIZE)
            trainer.run(draws, LR, loss_of(trainer.train, trainer.data.info.task), plain_step, lambda net: None)
        return net.parameter.clone()

    def test(self, net: FlatNet) -> Tensor:
        """Returns the outputs in evaluation mode on a batch of client 0. Tests seed no generator."""
        net.parameter.copy_(self.initial)
        as_stored = Draws(torch.tensor(self.clients[0][None, :BATCH_SIZE], device=self.trainer.data.device))
        with bn.using(net.module, None), torch.no_grad():
            return net.module(self.trainer.data.train_batch(as_stored, 0, 0, BATCH_SIZE)[0]).clone()

    def results(self, one: FlatNet, two: FlatNet) -> dict[str, tuple[Tensor, Tensor]]:
        """Returns what tests and training with client 0 give in net `one`, and after client 1 in `two`.
        Client 0 is the last that both nets train and test."""
        trained = self.train(one, 0)
        tested = self.test(one)
        self.train(two, 1)
        tested_after = self.test(two)
        trained_after = self.train(two, 0)
        self.test(two)
        return {"tests": (tested, tested_after), "training": (trained, trained_after)}


def _check_net(trial: _Trial, make_net: Callable[[], nn.Module], model: str) -> str:
    """Returns a digest of the client's results. Raises `ConfigError`."""
    net = trial.trainer.net
    again = net.with_module(make_net())
    constants = {name: value.clone() for name, value in net.module.named_buffers()}

    def refuse_other_buffers(other: FlatNet, problem: str) -> None:
        for name, value in other.module.named_buffers():
            if name in constants and not torch.equal(bytes_of(constants[name]), bytes_of(value)):
                module, _, buffer = name.rpartition(".")
                raise create.refusal(model, net.module, module, problem.format(buffer))

    refuse_other_buffers(again, "has other values in its buffer {!r} each time it is made; make them the same")
    made = [attributes_of(net.module), attributes_of(again.module)]
    results = trial.results(net, again)
    refuse_other_buffers(net, "changes its buffer {!r} " + CHANGES)
    for what, (first, second) in results.items():
        if not torch.equal(bytes_of(first), bytes_of(second)):
            raise create.refusal(model, net.module, "", f"gives other results in {what} {KEEPS}")
    used = [attributes_of(net.module), attributes_of(again.module)]
    for module, name in _that_count(made, used):
        raise create.refusal(model, net.module, module, f"changes its attribute {name!r} {CHANGES}")
    return digest_of({what: first for what, (first, _) in results.items()})


def _that_count(made: Sequence[Attributes], used: Sequence[Attributes]) -> Iterator[tuple[str, str]]:
    """Yields the attributes that training changes in one of two nets, and to another value in the second, which has
    trained one client more. The value of a cache that is filled once, or of the last batch, is the same."""
    for place in sorted({*used[0], *used[1]}):
        values = [net.get(place) for net in used]
        if values[0] != values[1] and values != [net.get(place) for net in made]:
            yield place


def attributes_of(net: nn.Module) -> Attributes:
    """Returns the plain attributes by module and name, those of the modules' own classes, too."""
    kept: Attributes = {}
    for module, part in net.named_modules():
        for name, value in {**vars(type(part)), **vars(part)}.items():
            if name not in _OF_TORCH:
                kept[module, name] = _comparable(value)
    return kept


def variables_of(function: Callable[..., Any]) -> object:
    """Returns the variables from outside that a function reads, and its defaults; of another object its attributes."""
    if not inspect.isfunction(function):
        return _comparable(getattr(function, "__dict__", {}))
    outside = inspect.getclosurevars(function)
    return _comparable([outside.nonlocals, outside.globals, function.__defaults__, function.__kwdefaults__])


def _comparable(value: object) -> object:
    """Returns a value that equals another one if both hold the same; only the type of what is not plain."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.shape, blake2b(value.tobytes(), digest_size=8).hexdigest()
    if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
        return digest_of({"": value})
    if isinstance(value, Mapping):
        return [(_comparable(key), _comparable(entry)) for key, entry in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return [_comparable(entry) for entry in value]
    if isinstance(value, Set):
        return sorted(repr(entry) for entry in value if isinstance(entry, (str, Number)))
    return repr(value) if isinstance(value, (str, bytes, Number, np.generic)) else type(value).__name__

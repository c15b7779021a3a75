"""Random combinations of settings, and the ways to run each of them that must give the same bits.

`draw(seed, number, data)` is a function of its arguments alone, so a combination is named by two numbers. Small nets
on few examples: a round takes some 50 ms.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmpi import methods, registry
from fedmpi.config import yaml_text
from fedmpi.config.load import load
from fedmpi.config.yaml_text import flow
from fedmpi.data import prepared
from fedmpi.data.dataset import Dataset
from fedmpi.data.sets.har import Har
from fedmpi.data.sets.shakespeare import Shakespeare
from fedmpi.errors import UserError
from fedmpi.running import start

from .moments import SERVER_STAGES, WORKER_STAGES

NUM_RANKS = 5
"""Of the job whose ranks make all starts, one after the other."""
_NUM_TRAIN, _NUM_TEST, _NUM_GROUPS = 96, 30, 6
_COUNTS = f"data.num_train={_NUM_TRAIN} data.num_test={_NUM_TEST} data.num_groups={_NUM_GROUPS}"
METHODS = tuple(registry.BUILT_IN["method"])

_DRAWN = yaml_text.parse(Path(__file__).with_suffix(".yaml").read_text()).value


@dataclass(frozen=True)
class Fault:
    """Rank `rank` of the group raises where it enters `stage` of round `round`, after `skip` other times."""

    rank: int
    round: int
    stage: str
    skip: int


@dataclass(frozen=True)
class Leg:
    """One start of a run: on how many ranks, with which settings that change no bit, and how it ends."""

    size: int
    settings: tuple[str, ...]
    stop_after: int | None = None
    """Rounds after which this start is asked to stop."""
    fault: Fault | None = None
    is_alone: bool = False
    """Without MPI, as `python -m fedmpi.main`."""

    def text(self) -> str:
        ends = f", asked to stop after {self.stop_after} rounds" if self.stop_after else ""
        if self.fault is not None:
            ends = f", rank {self.fault.rank} raises in {self.fault.stage} of round {self.fault.round}"
        return f"{self.size} rank{'s' * (self.size > 1)} ({' '.join(self.settings)}{ends})"


@dataclass(frozen=True)
class Combination:
    """Settings, and the variants of their run, each a list of starts; the first variant is what others must equal."""

    number: int
    overrides: tuple[str, ...]
    variants: tuple[tuple[Leg, ...], ...]

    @property
    def method(self) -> str:
        return next(word.partition("=")[2] for word in self.overrides if word.startswith("method.name="))


def draw(seed: int, number: int, folder: Path) -> Combination:
    """The combination of this number. Any 16 that follow each other have all methods; `folder` has `write_data`'s."""
    chance = random.Random(f"{seed} {number}")
    order = random.Random(f"{seed} methods").sample(METHODS, len(METHODS))
    method = order[number % len(order)]
    while True:
        overrides = tuple(_settings(chance, method, folder))
        try:
            config = load(None, overrides)
            methods.create(start.method_context(config, config.data.info()))
        except UserError:
            continue
        return Combination(number, overrides, tuple(_variants(chance, config.rounds)))


def _settings(chance: random.Random, method: str, folder: Path) -> Iterator[str]:
    kind, words = chance.choice(_DRAWN["data"])
    yield from words.replace("PREPARED", f"data.root={folder} {_COUNTS}").split()
    yield from chance.choice(_DRAWN["models"][kind.partition(" ")[0]]).split()
    partitions = {"image": "any", "image many": "many"}.get(kind) or chance.choice(("groups", "groups", "any"))
    yield from chance.choice(_DRAWN["partitions"][partitions]).split()
    count = _NUM_GROUPS if partitions == "groups" else chance.randint(3, 10)
    yield from (f"clients.count={count}", f"clients.per_round={chance.randint(1, min(count, 6))}")
    yield f"method.name={method}"
    for key, values in _DRAWN["options"][method].items():
        if chance.random() < 0.6:
            yield f"method.{key}={flow(chance.choice(values))}"
    yield from _one_each(chance, _DRAWN["settings"])
    for lines in _DRAWN["together"].values():
        yield from chance.choice(lines).split()
    yield from (
        f"seed={chance.randrange(1000)}",
        "output.progress=off",
        "output.tensorboard=false",
        "output.report=false",
    )


def _one_each(chance: random.Random, values_of: Mapping[str, Sequence[object]]) -> Iterator[str]:
    yield from (f"{key}={flow(chance.choice(values))}" for key, values in values_of.items())


def _variants(chance: random.Random, rounds: int) -> Iterator[tuple[Leg, ...]]:
    """The reference, which saves and keeps every round; then undisturbed ones, one that stops, two that fail."""
    yield (Leg(1, ("output.checkpoint_every=1", f"output.keep_checkpoints={rounds}"), is_alone=True),)
    sizes = [2, 3, 5, chance.choice((1, 2, 3))]
    chance.shuffle(sizes)
    yield (_leg(chance, sizes[0]),)
    stopped = _leg(chance, sizes[1], stop_after=chance.randint(1, rounds - 1))
    yield stopped, _leg(chance, _other(chance, sizes[1]))
    yield _leg(chance, sizes[2], fault=_fault(chance, sizes[2], rounds)), _leg(chance, _other(chance, sizes[2]))
    middle = _other(chance, sizes[3])
    twice = _leg(chance, middle, fault=_fault(chance, middle, rounds))
    yield _leg(chance, sizes[3], fault=_fault(chance, sizes[3], rounds)), twice, _leg(chance, _other(chance, middle))


def _leg(chance: random.Random, size: int, stop_after: int | None = None, fault: Fault | None = None) -> Leg:
    settings = tuple(_one_each(chance, _DRAWN["start"]))
    return Leg(size, settings, stop_after, fault, is_alone=size == 1 and chance.random() < 0.5)


def _other(chance: random.Random, size: int) -> int:
    return chance.choice([other for other in (1, 2, 3, 5) if other != size])


def _fault(chance: random.Random, size: int, rounds: int) -> Fault:
    rank = chance.randrange(size)
    stages = (*SERVER_STAGES, *WORKER_STAGES) if size == 1 else SERVER_STAGES if rank == 0 else WORKER_STAGES
    return Fault(rank, chance.randint(1, rounds), chance.choice(stages), chance.choice((0, 0, 1, 2)))


def write_data(folder: Path) -> None:
    """Prepared files with examples of six groups: rows of numbers, and texts; the same ones each time."""
    counts = {"root": str(folder), "num_train": _NUM_TRAIN, "num_test": _NUM_TEST, "num_groups": _NUM_GROUPS}
    folder.mkdir(parents=True, exist_ok=True)
    rows = Har.model_validate({"form": "features", **counts})
    texts = Shakespeare.model_validate({"length": 8, **counts})
    chance = np.random.default_rng(0)
    prepared.save(rows, _grouped(chance, chance.normal(size=(_NUM_TRAIN + _NUM_TEST, 561)).astype(np.float32), 6))
    letters = chance.integers(0, 65, (_NUM_TRAIN + _NUM_TEST, 8)).astype(np.int16)
    prepared.save(texts, _grouped(chance, letters, 65))


def _grouped(chance: np.random.Generator, x: np.ndarray, num_classes: int) -> Dataset:
    y, groups = chance.integers(0, num_classes, len(x)), np.arange(len(x)) % _NUM_GROUPS
    train, test = slice(None, _NUM_TRAIN), slice(_NUM_TRAIN, None)
    return Dataset(x[train], y[train], x[test], y[test], groups[train], groups[test])

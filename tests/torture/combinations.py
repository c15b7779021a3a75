"""Random combinations of settings, and the ways to run each of them that must give the same bits.

`draw(seed, number, data)` is a function of its arguments alone, so a combination is named by two numbers. Small nets
on few examples: a round takes some 50 ms.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
from fedmpi.run import start

NUM_RANKS = 6
"""Of the job whose ranks form the groups."""
_NUM_TRAIN, _NUM_TEST, _NUM_GROUPS = 96, 30, 6
_COUNTS = (f"data.num_train={_NUM_TRAIN}", f"data.num_test={_NUM_TEST}", f"data.num_groups={_NUM_GROUPS}")
METHODS = tuple(registry.BUILT_IN["method"])
SERVER_STAGES = ("communication", "aggregation", "svd", "evaluation", "saving")
WORKER_STAGES = ("submodel_creation", "local_training", "communication", "aggregation", "evaluation")

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
    waves: tuple[tuple[tuple[int, int], ...], ...] = field(default=())
    """Which starts (variant, leg) run at the same time, side by side on the job's ranks."""

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
        variants = tuple(_variants(chance, config.rounds))
        return Combination(number, overrides, variants, tuple(_waves(chance, variants)))


def _settings(chance: random.Random, method: str, folder: Path) -> Iterator[str]:
    count = chance.randint(3, 10)
    kind, words = _data(chance, folder)
    yield from words
    yield from chance.choice(_DRAWN["models"][kind.partition(" ")[0]]).split()
    partitions = "groups" if kind != "image" and chance.random() < 0.7 else "any"
    is_natural = partitions == "groups"
    yield from chance.choice(_DRAWN["partitions"]["many" if kind == "image many" else partitions]).split()
    yield from (f"clients.count={6 if is_natural else count}", f"clients.per_round={chance.randint(1, min(count, 6))}")
    yield f"method.name={method}"
    for key, values in _DRAWN["options"][method].items():
        if chance.random() < 0.6:
            yield f"method.{key}={flow(chance.choice(values))}"
    yield from _training(chance)
    yield f"clients.tier_assignment={chance.choice(('fixed', 'dynamic'))}"
    yield f"evaluation.every={chance.choice((1, 1, 2))}"
    yield f"evaluation.batch_size={chance.choice((7, 16, 64))}"
    yield f"evaluation.bn={chance.choice(('batch', 'restat', 'milestone'))}"
    yield f"evaluation.personal={chance.choice(('auto', 'on', 'off'))}"
    yield f"evaluation.personal_test={chance.choice(('auto', 'matching', 'classes'))}"
    yield f"evaluation.clients={chance.choice((0, 0, 2))}"
    yield from (f"seed={chance.randrange(1000)}", "output.progress=off", "output.tensorboard=false")


def _data(chance: random.Random, folder: Path) -> tuple[str, list[str]]:
    kind = chance.choice((*6 * ("image",), "image few", "image many", "vector", "tokens"))
    if kind == "image many":
        return kind, ["data.name=digits"]
    if kind == "vector":
        return kind, ["data.name=har", "data.form=features", f"data.root={folder}", *_COUNTS]
    if kind == "tokens":
        return kind, ["data.name=shakespeare", "data.length=8", f"data.root={folder}", *_COUNTS]
    num_train, num_test = (24, 9) if kind == "image few" else (chance.randint(60, 160), chance.randint(20, 60))
    shape, classes = chance.choice(("[1,8,8]", "[1,8,8]", "[3,8,8]")), chance.choice((2, 4, 5))
    words = [f"data.shape={shape}", f"data.classes={classes}", f"data.num_train={num_train}"]
    return "image", ["data.name=synthetic", *words, f"data.num_test={num_test}"]


def _training(chance: random.Random) -> Iterator[str]:
    policy = chance.choice(("fail", "fail", "fail", "drop", "upload_last_finite"))
    rates = (0.01, 0.05) if policy == "fail" else (0.05, 0.5, 30)
    yield f"rounds={chance.randint(2, 5)}"
    yield f"train.local_epochs={chance.choice((1, 1, 2))}"
    yield f"train.batch_size={chance.choice((4, 8, 16))}"
    yield f"train.lr={chance.choice(rates)}"
    yield f"train.momentum={chance.choice((0, 0.9))}"
    yield f"train.clip_norm={chance.choice(('.inf', '1'))}"
    yield f"train.drop_last={flow(chance.random() < 0.2)}"
    yield f"train.weight_decay={chance.choice((0, 1e-4, 1e-2))}"
    schedules = (["milestones=[1]"], ["milestones=[1,3]", "factor=0.5"], [], ["name=cosine"])
    yield from (f"train.schedule.{word}" for word in chance.choice(schedules))
    yield f"train.masked_loss={flow(chance.random() < 0.6)}"
    yield f"train.augment={flow(chance.random() < 0.7)}"
    yield f"train.precision={chance.choice(('fp32', 'fp32', 'bf16'))}"
    yield f"train.memory_format={chance.choice(('channels_last', 'contiguous'))}"
    yield f"train.on_divergence={policy}"


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
    settings = (
        f"mpi.exchange={chance.choice(('gather', 'reduce', 'auto'))}",
        f"mpi.server_trains={flow(chance.random() < 0.4)}",
        f"output.checkpoint_every={chance.choice((1, 1, 2, 3))}",
        f"output.keep_checkpoints={chance.choice((1, 2, 2, 3))}",
    )
    return Leg(size, settings, stop_after, fault, is_alone=size == 1 and chance.random() < 0.5)


def _other(chance: random.Random, size: int) -> int:
    return chance.choice([other for other in (1, 2, 3, 5) if other != size])


def _fault(chance: random.Random, size: int, rounds: int) -> Fault:
    rank = chance.randrange(size)
    stages: Sequence[str] = SERVER_STAGES if rank == 0 else WORKER_STAGES
    if size == 1:
        stages = (*SERVER_STAGES, *WORKER_STAGES)
    return Fault(rank, chance.randint(1, rounds), chance.choice(stages), chance.choice((0, 0, 1, 2)))


def _waves(chance: random.Random, variants: Sequence[Sequence[Leg]]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Each start after those before it of the same run; in each wave as many as the job has ranks for."""
    done = [0] * len(variants)
    while any(place < len(legs) for place, legs in zip(done, variants, strict=True)):
        left, wave = NUM_RANKS, []
        # First those with the most starts to come.
        waiting = sorted(range(len(variants)), key=lambda which: (done[which] - len(variants[which]), chance.random()))
        for which in waiting:
            if done[which] < len(variants[which]) and variants[which][done[which]].size <= left:
                left -= variants[which][done[which]].size
                wave.append((which, done[which]))
                done[which] += 1
        yield tuple(wave)


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

"""Finds the kind of a named thing and the small federation that it is tried in, and lists the checks of each kind."""

import inspect
import io
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedmpi import registry
from fedmpi.check import contract
from fedmpi.check.contract import BrokenError, Trial, require
from fedmpi.check.small import run_all, small_config
from fedmpi.config.schema import Config
from fedmpi.data.dataset import load_data
from fedmpi.data.partition import make_partition
from fedmpi.errors import ConfigError, UnknownError
from fedmpi.methods.aggregate import is_aggregate
from fedmpi.models import create
from fedmpi.mpi.communicator import SerialComm
from fedmpi.report import observer
from fedmpi.running.forecast import forecast
from fedmpi.store.hdf5 import digest_of

SECTIONS = ("method", "model", "data", "partition")
_WORDS = {
    "observer": "output.observers=[{}]",
    "aggregate": "method.aggregate={}",
    "loss": "train.loss={}",
    "metric": "evaluation.metrics=[{}]",
    "sampling": "clients.sampling={}",
}
"""The word that names a thing which is no section of a config."""
KINDS = (*SECTIONS, *_WORDS)
_NETS = {"image": (), "vector": ("model.name=mlp", "model.hidden=[16]"), "tokens": ("model.name=lstm_imdb",)}

Check = Callable[[], None]


def kind_of(place: str) -> str:
    """Returns the one kind that `place` can be of. Raises `ConfigError` if it is none, or more than one.

    Any function could give data; one with the arguments of a model or a partition is taken for that.
    """
    thing: object = None
    if registry.is_in_full(place) or registry.by_path(place):
        try:
            thing = registry.import_object(place)
        except UnknownError as error:
            raise ConfigError(place, str(error)) from None
    found = [kind for kind in SECTIONS if _may_be(kind, place)]
    if len(found) > 1 and "data" in found:
        found.remove("data")
    if not found and is_aggregate(thing):
        found = ["aggregate"]
    elif not found and _may_be("observer", place):
        found = ["observer"]
    elif not found:
        found = ["loss", "metric", "sampling"] if inspect.isfunction(thing) else [*KINDS]
    if len(found) > 1:
        what = "" if thing else "is no package.module:Class; it "
        raise ConfigError(place, f"{what}may be a {' or a '.join(found)}; say which with --kind")
    return found[0]


def _may_be(kind: str, place: str) -> bool:
    try:
        if kind == "observer":
            observer.named(small_config(f"output.observers=[{place}]"))
        else:
            registry.options(kind, place)
    except (UnknownError, ConfigError):
        return False
    return True


def words_of(kind: str, place: str, given: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides of the small federation that it is tried in; what is `given` comes last."""
    words = [_WORDS.get(kind, f"{kind}.name={{}}").format(place)]
    if kind == "observer":
        words.append("output.progress=plain")
    if kind != "method":
        words.append("method.name=fedavg")
    if kind in ("method", "aggregate"):
        words.append("partition.name=class_dirichlet")  # unequal clients arrive in another order on several ranks
    if kind == "data" and not any(word.startswith("model.name=") for word in given):
        of_data = [word for word in given if word.startswith("data.")]
        probed = (*words, "partition.name=iid", *of_data, "model.name=mlp", "model.hidden=[16]")
        info = small_config(*probed).data.used()
        words += _NETS[info.kind]
        if info.task != "classification":
            words.append("partition.name=iid")
    return (*words, *given)


def checks_of(kind: str, folder: Path, words: Sequence[str]) -> list[tuple[str, Check]]:
    """Returns each check of this kind with what holds if it passes: its docstring, without "Checks that"."""
    subject = Trial(folder, words) if kind == "method" else small_config(*words)
    checks: list[tuple[str, Check]] = []
    for check in CHECKS[kind]:
        holds = " ".join((check.__doc__ or "").split()).removeprefix("Checks that ")
        checks.append((holds, partial(check, subject)))
    return checks


def takes_the_data(config: Config) -> None:
    """Checks that the net takes the data and keeps nothing from one client to the next but its parameters"""
    try:
        forecast(config, 1)
    except ConfigError as error:
        hint = "; other pictures: 'data.shape=[3,32,32]'" if config.data.name == "synthetic" else ""
        raise BrokenError(f"{error.text()}{hint}") from None


def builds_the_same(config: Config) -> None:
    """Checks that a seed gives the same initial values every time, another seed gives others"""
    info = config.data.used()
    digests = []
    for seed in (0, 0, 1):
        net = create.build(config.model, info, seed)
        digests.append(digest_of({name: value.detach() for name, value in net.named_parameters()}))
    first, again, other = digests
    require(first == again, "built twice from one seed, the net has other values: draw them from torch's generator")
    require(first != other, "another seed gives the same initial values")


def reads_the_same(config: Config) -> None:
    """Checks that the data are what their options say, and read twice they are the same"""
    require(load_data(config.data).digest == load_data(config.data).digest, "read twice, the data differ")


def divides_the_same(config: Config) -> None:
    """Checks that every example goes to one client at most, and the same clients get the same examples every time"""
    data = load_data(config.data)
    given = config.partition, data.train_y, config.clients.count, config.seed, data.groups
    first, again = (make_partition(*given) for _ in range(2))
    same = np.array_equal(first.indices, again.indices) and np.array_equal(first.offsets, again.offsets)
    require(same, "made twice from one seed, the partition differs: draw from numpy.random.default_rng(seed)")


def runs(config: Config) -> None:
    """Checks that a run takes it without a warning"""
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        run_all(config, SerialComm(), Path(folder) / "watched")
    lines = re.sub(r"\n +", " ", errors.getvalue()).splitlines()
    warnings = [line for line in lines if line.startswith("warning: ")]
    require(not warnings, "; ".join(warnings).removeprefix("warning: "))


CHECKS: dict[str, tuple[Callable[..., None], ...]] = {
    "method": contract.CHECKS,
    "model": (takes_the_data, builds_the_same),
    "data": (reads_the_same,),
    "partition": (divides_the_same,),
    **dict.fromkeys(_WORDS, (runs,)),
}

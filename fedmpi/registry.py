"""What the `name` of a config's section can be: methods, models, data sets and partitions.

A thing is built in (a line of `BUILT_IN`), or an installed package offers it under a name of its own (an entry point of
the group in `GROUPS`), or the user names it in full, as `package.module:Class`. All three come through `options`, which
gives the class of the section's options; that class makes everything else. Nothing is imported before it is named.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from fedmpi.errors import UnknownError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BUILT_IN: dict[str, dict[str, str]] = {
    "data": {
        "digits": "fedmpi.data.sets.digits:Digits",
        "cifar10": "fedmpi.data.sets.cifar:Cifar10",
        "cifar100": "fedmpi.data.sets.cifar:Cifar100",
        "mnist": "fedmpi.data.sets.mnist:Mnist",
        "qmnist": "fedmpi.data.sets.mnist:Qmnist",
        "emnist": "fedmpi.data.sets.emnist:Emnist",
        "femnist": "fedmpi.data.sets.femnist:Femnist",
        "tinyimagenet": "fedmpi.data.sets.tinyimagenet:TinyImagenet",
        "har": "fedmpi.data.sets.har:Har",
        "imdb": "fedmpi.data.sets.imdb:Imdb",
        "shakespeare": "fedmpi.data.sets.shakespeare:Shakespeare",
        "synthetic": "fedmpi.data.sets.synthetic:Synthetic",
        "npz": "fedmpi.data.sets.npz:Npz",
        "image_folder": "fedmpi.data.sets.image_folder:ImageFolder",
    },
    "partition": {
        "iid": "fedmpi.data.partitions.iid:Iid",
        "dirichlet_feddf": "fedmpi.data.partitions.dirichlet_feddf:DirichletFeddf",
        "dirichlet": "fedmpi.data.partitions.dirichlet:Dirichlet",
        "class_dirichlet": "fedmpi.data.partitions.class_dirichlet:ClassDirichlet",
        "dirichlet_equal": "fedmpi.data.partitions.dirichlet_equal:DirichletEqual",
        "shards": "fedmpi.data.partitions.shards:Shards",
        "lottery": "fedmpi.data.partitions.lottery:Lottery",
        "natural": "fedmpi.data.partitions.natural:Natural",
        "quantity_skew": "fedmpi.data.partitions.quantity_skew:QuantitySkew",
    },
    "model": {
        "resnet18": "fedmpi.models.options:ResNet18",
        "resnet34": "fedmpi.models.options:ResNet34",
        "vgg16": "fedmpi.models.options:Vgg16",
        "alexnet": "fedmpi.models.options:AlexNet",
        "lenet5": "fedmpi.models.options:Lenet5",
        "cnn_hermes": "fedmpi.models.options:CnnHermes",
        "cnn_femnist": "fedmpi.models.options:CnnFemnist",
        "mlp": "fedmpi.models.options:Mlp",
        "mlp_har": "fedmpi.models.options:MlpHar",
        "lstm_imdb": "fedmpi.models.options:LstmImdb",
        "lstm_char": "fedmpi.models.options:LstmChar",
        "vit_small": "fedmpi.models.options:VitSmall",
        "torchvision:": "fedmpi.models.options:Torchvision",
    },
    "method": {
        "fedavg": "fedmpi.methods.fedavg:FedAvg",
        "fedhm": "fedmpi.methods.fedhm:FedHM",
        "fdnnc": "fedmpi.methods.fdnnc:FDNNC",
        "prism": "fedmpi.methods.prism:Prism",
        "orthdrop": "fedmpi.methods.prism:OrthDrop",
        "heterofl": "fedmpi.methods.heterofl:HeteroFL",
        "splitmix": "fedmpi.methods.splitmix:SplitMix",
        "fedrolex": "fedmpi.methods.fedrolex:FedRolex",
        "fjord": "fedmpi.methods.fjord:Fjord",
        "origdrop": "fedmpi.methods.origdrop:OrigDrop",
        "fedprox": "fedmpi.methods.fedprox:FedProx",
        "scaffold": "fedmpi.methods.scaffold:Scaffold",
        "lgfedavg": "fedmpi.methods.lgfedavg:LGFedAvg",
        "hermes": "fedmpi.methods.hermes:Hermes",
        "perfedavg": "fedmpi.methods.perfedavg:PerFedAvg",
        "topk": "fedmpi.methods.topk:TopK",
        "standalone": "fedmpi.methods.standalone:Standalone",
    },
}
"""Per section: every built-in name and its class; a section that a file leaves out has the first name. A name that ends
in a colon stands for all names that begin with it."""

GROUPS = {section: f"fedmpi.{section if section == 'data' else section + 's'}" for section in BUILT_IN}
"""The group of entry points of each section: `fedmpi.methods`, `fedmpi.models`, `fedmpi.data`, `fedmpi.partitions`."""

_ADAPTERS = {
    "method": "fedmpi.methods:options_of",
    "model": "fedmpi.models.brought:options_of",
    "data": "fedmpi.data.own:options_of_data",
    "partition": "fedmpi.data.own:options_of_partition",
}
# `package.module:Class`, both parts Python names with dots.
_IN_FULL = re.compile(r"(?:[^\W\d]\w*\.)*[^\W\d]\w*:(?:[^\W\d]\w*\.)*[^\W\d]\w*")


def names(section: str) -> list[str]:
    """Returns all names that `section` can have without naming a class in full: the built-in ones first."""
    return [*BUILT_IN[section], *installed(section)]


@cache
def installed(section: str) -> dict[str, EntryPoint]:
    """Returns what installed packages offer for `section`, by name; imports none of it. A built-in name stays fedmpi's,
    and a name that several packages have is left out.
    """
    points: dict[str, dict[str, EntryPoint]] = {}
    for point in _entry_points().select(group=GROUPS[section]):
        if not is_built_in(section, point.name):
            points.setdefault(point.name, {})[point.value] = point
    return {name: next(iter(by_value.values())) for name, by_value in sorted(points.items()) if len(by_value) == 1}


def offers(section: str, name: str) -> str:
    """Returns what to write for what installed packages offer under a name that does not mean it: a built-in one, which
    stays fedmpi's, or one that several packages have; empty for another name.
    """
    points = {point.value: point for point in _entry_points().select(group=GROUPS[section], name=name)}
    if len(points) < 2 and not is_built_in(section, name):
        return ""
    return " or ".join(f"{section}.name={value} (package {points[value].dist.name})" for value in sorted(points))


@cache
def _entry_points() -> Any:
    """Reads the entry points of all installed packages; of another type in Python 3.10."""
    from importlib.metadata import entry_points  # most commands need none of them

    return entry_points()


def is_built_in(section: str, name: str) -> bool:
    """Returns whether `name` is one of fedmpi's own."""
    return bool(_key(section, name))


def named_in_full(config: Any) -> list[tuple[str, str]]:
    """Returns (section, name) of each section of a config that names a class in full: a command that resumes a run
    repeats these, because a run directory alone makes fedmpi import nothing.
    """
    named = [(section, getattr(config, section).name) for section in BUILT_IN]
    return [(section, name) for section, name in named if is_in_full(name)]


def is_in_full(name: str) -> bool:
    """Whether `name` is a `package.module:Class` that only the user's own words make fedmpi import."""
    return bool(_IN_FULL.fullmatch(name)) and not any(_key(section, name) for section in BUILT_IN)


def is_known(section: str, name: str) -> bool:
    """Whether `name` is a built-in or installed one, or names a class in full; the latter may still not exist."""
    return is_built_in(section, name) or name in installed(section) or is_in_full(name)


def options(section: str, name: str) -> Any:
    """The options class (a `config.fields.Section`) of what `name` means in `section`. Raises `UnknownError`."""
    if not is_known(section, name):
        raise UnknownError(f"no {section} {name!r}")
    if is_built_in(section, name):
        found = made(section, name)
        found = getattr(found, "Options", found)
        lacks = getattr(found, "lacks", None)  # of a class that stands for many names
        if lacks and (problem := lacks(name)):
            raise UnknownError(problem)
        return found
    return imported(_ADAPTERS[section])(name, made(section, name))


def made(section: str, name: str) -> Any:
    """Returns the class that `name` means, which may hold its options class as `Options`. Raises `UnknownError`."""
    if key := _key(section, name):
        return imported(BUILT_IN[section][key])
    if (point := installed(section).get(name)) is None:
        return imported(name)
    try:
        return imported(point.value)
    except UnknownError as error:
        package = point.dist.name if point.dist else "?"
        raise UnknownError(f"{name!r} of the installed package {package}: {error}") from error


def built_in(section: str) -> Iterator[tuple[str, Any]]:
    """Every built-in name and its options class, which imports all of them (no torch)."""
    yield from ((name, options(section, name)) for name in BUILT_IN[section])


def without_class(name: str) -> str:
    """Says what `mynets` and `mynets.Net` lack, where that is a module (not imported for this); empty for others."""
    package, _, inner = name.partition(".")
    with contextlib.suppress(ImportError, ValueError):
        if package.isidentifier() and importlib.util.find_spec(package):
            module, _, last = name.rpartition(".")
            written = f"{module}:{last}" if inner and last[:1].isupper() else f"{name}:Class"
            return f" A class is named after its module and a colon: {written}."
    return ""


def _key(section: str, name: str) -> str:
    """The built-in key that covers `name`; empty if there is none."""
    table = BUILT_IN[section]
    if name in table and not name.endswith(":"):
        return name
    return next((key for key in table if key.endswith(":") and name.startswith(key)), "")


def imported(place: str) -> Any:
    """The object `package.module:Name`. Raises `UnknownError` with the module's own error, in one line."""
    module, _, attributes = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the module of a user does when it loads
        line = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UnknownError(f"{place!r} cannot be imported: {line}{_where_looked(module, error)}") from error
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            close = difflib.get_close_matches(attribute, [name for name in dir(found) if name[0] != "_"], 2)
            meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise UnknownError(f"module {module!r} has no {attributes!r}{meant}") from None
    return found


def _where_looked(module: str, error: BaseException) -> str:
    """Returns the advice for a module that was not found itself; none for one that it imports."""
    if not isinstance(error, ModuleNotFoundError) or not f"{module}.".startswith(f"{error.name}."):
        return ""
    return "; go to the folder that has it, or add that to PYTHONPATH"

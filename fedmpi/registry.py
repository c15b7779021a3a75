"""What the `name` of a config's section can be: methods, models, data sets and partitions, built in (`BUILT_IN`) or the
user's own, as `package.module:Class`. Nothing is imported before it is named.
"""

import importlib
import os
import re
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedmpi.errors import UnknownError

BUILT_IN: dict[str, dict[str, str]] = {
    "data": {
        "digits": "fedmpi.data.sets.digits:Digits",
        "cifar10": "fedmpi.data.sets.cifar:Cifar10",
        "cifar100": "fedmpi.data.sets.cifar:Cifar100",
        "mnist": "fedmpi.data.sets.mnist:Mnist",
        "qmnist": "fedmpi.data.sets.mnist:Qmnist",
        "emnist": "fedmpi.data.sets.mnist:Emnist",
        "femnist": "fedmpi.data.sets.leaf:Femnist",
        "tinyimagenet": "fedmpi.data.sets.tinyimagenet:TinyImagenet",
        "har": "fedmpi.data.sets.har:Har",
        "imdb": "fedmpi.data.sets.imdb:Imdb",
        "shakespeare": "fedmpi.data.sets.leaf:Shakespeare",
        "synthetic": "fedmpi.data.sets.digits:Synthetic",
        "npz": "fedmpi.data.sets.own_files:Npz",
        "image_folder": "fedmpi.data.sets.own_files:ImageFolder",
        "table": "fedmpi.data.sets.own_files:Table",
        "huggingface": "fedmpi.data.sets.own_files:HuggingFace",
        "text": "fedmpi.data.sets.text:Text",
    },
    "partition": {
        "iid": "fedmpi.data.partitions.plain:Iid",
        "dirichlet_feddf": "fedmpi.data.partitions.dirichlet:DirichletFeddf",
        "dirichlet": "fedmpi.data.partitions.dirichlet:Dirichlet",
        "class_dirichlet": "fedmpi.data.partitions.dirichlet:ClassDirichlet",
        "dirichlet_equal": "fedmpi.data.partitions.dirichlet:DirichletEqual",
        "shards": "fedmpi.data.partitions.plain:Shards",
        "lottery": "fedmpi.data.partitions.plain:Lottery",
        "natural": "fedmpi.data.partitions.plain:Natural",
        "quantity_skew": "fedmpi.data.partitions.dirichlet:QuantitySkew",
    },
    "model": {
        "resnet18": "fedmpi.models.nets.resnet:ResNet18",
        "resnet34": "fedmpi.models.nets.resnet:ResNet34",
        "vgg16": "fedmpi.models.nets.cnn:Vgg16",
        "alexnet": "fedmpi.models.nets.cnn:AlexNet",
        "lenet5": "fedmpi.models.nets.cnn:Lenet5",
        "cnn_hermes": "fedmpi.models.nets.cnn:CnnHermes",
        "cnn_femnist": "fedmpi.models.nets.cnn:CnnFemnist",
        "cnn_prism": "fedmpi.models.nets.cnn:CnnPrism",
        "mlp": "fedmpi.models.nets.mlp:Mlp",
        "mlp_har": "fedmpi.models.nets.mlp:MlpHar",
        "lstm_imdb": "fedmpi.models.nets.lstm:LstmImdb",
        "lstm_char": "fedmpi.models.nets.lstm:LstmChar",
        "vit_small": "fedmpi.models.nets.vit:VitSmall",
        "torchvision:": "fedmpi.models.nets.torchvision_nets:Torchvision",
    },
    "method": {
        "fedavg": "fedmpi.methods.fedavg:FedAvg",
        "fedhm": "fedmpi.methods.fedhm_delta:FedHMDelta",
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
        "fednova": "fedmpi.methods.fednova:FedNova",
        "feddyn": "fedmpi.methods.feddyn:FedDyn",
        "moon": "fedmpi.methods.moon:Moon",
        "lgfedavg": "fedmpi.methods.lgfedavg:LGFedAvg",
        "fedbn": "fedmpi.methods.fedbn:FedBN",
        "hermes": "fedmpi.methods.hermes:Hermes",
        "perfedavg": "fedmpi.methods.perfedavg:PerFedAvg",
        "topk": "fedmpi.methods.topk:TopK",
        "standalone": "fedmpi.methods.standalone:Standalone",
        "lora": "fedmpi.methods.lora:Lora",
    },
}
"""Per section: every built-in name and its class, the default first. One that ends in a colon stands for all names that
begin with it."""

_ADAPTERS = {
    "method": "fedmpi.methods:options_of",
    "model": "fedmpi.models.user_nets:options_of",
    "data": "fedmpi.data.own:options_of_data",
    "partition": "fedmpi.data.own:options_of_partition",
}
_IDENTIFIERS = r"[^\W\d]\w*(\.[^\W\d]\w*)*"


def is_built_in(section: str, name: object) -> bool:
    """Returns whether `name` is one of fedmpi's own."""
    return bool(_key(section, name))


def is_in_full(name: object) -> bool:
    """Returns whether `name` is a `package.module:Class` that only the user's own words make fedmpi import."""
    is_place = isinstance(name, str) and re.fullmatch(f"{_IDENTIFIERS}:{_IDENTIFIERS}", name)
    return bool(is_place) and not any(_key(section, name) for section in BUILT_IN)


def by_path(name: object) -> str:
    """Returns `; write mine:Net, in the folder nets` for a file's path, `nets/mine.py:Net`; '' for another name."""
    match = re.fullmatch(r"(?:(.*)/)?(\w+)\.py:(\w+)", str(name))
    if not match:
        return ""
    folder = f", in the folder {match[1]}" if match[1] not in (None, ".") else ""
    return f"; write {match[2]}:{match[3]}{folder}"


def is_known(section: str, name: object) -> bool:
    """Returns whether `name` is built in, or names a class in full, which may still not exist."""
    return is_built_in(section, name) or is_in_full(name)


def options(section: str, name: Any = None) -> Any:
    """Returns the options class (a `config.fields.Section`) of what `name` means; None is the first built-in name.
    Raises `UnknownError`.
    """
    name = next(iter(BUILT_IN[section])) if name is None else name
    if not is_known(section, name):
        raise UnknownError(f"no {section} {name!r}")
    found = load_class(section, name)
    if is_built_in(section, name):
        return getattr(found, "Options", found)
    return import_object(_ADAPTERS[section])(name, found)


def load_class(section: str, name: str) -> Any:
    """Returns the class that `name` means, which may hold its options class as `Options`. Raises `UnknownError`."""
    return import_object(BUILT_IN[section].get(_key(section, name), name))


def built_in(section: str) -> Iterator[tuple[str, Any]]:
    """Yields every built-in name and its options class, which imports all of them."""
    yield from ((name, options(section, name)) for name in BUILT_IN[section])


def import_object(place: str) -> Any:
    """Returns the object `package.module:Name`. Raises `UnknownError` with the module's own error, in one line."""
    if advice := by_path(place):
        raise UnknownError(f"{place!r} is the path of a file, expected package.module:Name{advice}")
    module, _, attributes = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (Exception, SystemExit) as error:  # whatever the module of a user does when it loads
        line = f"{place!r} cannot be imported: {type(error).__name__}: {' '.join(str(error).split())}"
        if isinstance(error, ModuleNotFoundError):
            line += "; go to the folder that has it, or add that to PYTHONPATH"
        raise UnknownError(line) from error
    loaded_digest(str(getattr(found, "__module__", module)))
    return found


_LOADED: dict[str, tuple[object, str]] = {}
"""By module of a user's: its spec, which `importlib.reload` replaces, and the digest of its file when it was loaded."""


def loaded_digest(module: str) -> str:
    """Returns the digest of the file that a module was loaded from; '' for one without a file."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if module not in _LOADED or _LOADED[module][0] is not spec:
        _LOADED[module] = spec, file_digest(module)
    return _LOADED[module][1]


def file_digest(module: str) -> str:
    """Returns the digest of a module's file as it is now; '' for one without a file, as in a notebook's cells."""
    try:
        return blake2b(Path(file_of(module)).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


def file_of(module: str) -> str:
    """Returns the path of a module's file; '' for one without."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return os.path.abspath(file) if file else ""


def _key(section: str, name: object) -> str:
    """Returns the built-in key that covers `name`; '' if there is none."""
    prefix = str(name).partition(":")[0] + ":"
    return next((key for key in (str(name), prefix) if key in BUILT_IN[section]), "")

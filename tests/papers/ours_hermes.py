"""Ours for Hermes: Tables 1, 3 and 4, Figure 2, sections 5.6 and 5.7."""

from dataclasses import replace
from functools import partial

from papers.claims import document
from papers.nets import Setting, params, setting

from fedmpi.costs import FLOAT32_BYTES
from fedmpi.models import create

_DATA = {"cifar10": "cifar10", "emnist": "femnist", "har": "har"}
_ROWS = {"IC-CIFAR10": "cifar10", "IC-EMNIST": "emnist", "HAR": "har"}


def _run(data: str, *overrides: str) -> Setting:
    return setting("hermes", f"{_DATA[data]}/hermes", *overrides)


def _size(data: str, *overrides: str, classes: int = 0) -> float:
    """Bytes of the dense net; `classes` where they are not those of the data."""
    found = _run(data, *overrides)
    info = replace(found.info, num_classes=classes) if classes else found.info
    return FLOAT32_BYTES * params(create.skeleton(found.config.model, info))


def _dense(data: str) -> float:
    """The dense net as in Table 3, which has the net of the classes that Table 1 prints."""
    return _size(data, classes=int(document("hermes")["facts"][f"classes_{data}"]["printed"]))


def _pruned(data: str) -> float:
    """What the target share leaves of it."""
    return float(_dense(data) * _run(data).config.method.target_share)


def _table3(column: str, row: str) -> float:
    size = _dense if column == "Baseline (MB)" else _pruned
    return sum(map(size, _DATA)) if row == "All Included" else size(_ROWS[row])


def _inception_v4() -> float:
    """Bytes of FedAvg with the 42,679,816 parameters (at 1,000 classes) of Inception-v4's ports to torch."""
    found = setting("hermes", "cifar10/fedavg")
    num_params = 42_679_816 - (1000 - found.info.num_classes) * (1536 + 1)
    return found.plan.bytes_per_run / params(found.model) * num_params


FACTS = {
    "figure2_inception": _inception_v4,
    **{f"devices_{data}": lambda data=data: _run(data).config.clients.count for data in _DATA},
    **{f"classes_{data}": lambda data=data: _run(data).info.num_classes for data in _DATA},
    "table4_cifar10": partial(_size, "cifar10", "model.name=lenet5"),
    "table4_emnist": partial(_size, "emnist", "model.name=cnn_hermes"),
    "table4_har": partial(_size, "har", "model.hidden=[300,100]"),
}
TABLES = {"table3": _table3}
CELLS = {"figure2": lambda of: setting("hermes", of.run).plan.bytes_per_run}

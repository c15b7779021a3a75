"""Ours for Hermes: Tables 1, 3 and 4, Figure 2, sections 5.6 and 5.7."""

from dataclasses import replace
from functools import cache, partial

import torch
from model_inputs import params
from papers.claims import document
from papers.nets import Setting, setting
from torch import nn

from fedmpi import methods
from fedmpi.costs import FLOAT32_BYTES, measure
from fedmpi.models import create
from fedmpi.models.surgery.cutting import cut
from fedmpi.running import start

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


@cache
def _cut(data: str) -> nn.Module:
    """The net of Table 3 after prunings to 0.5 and to the target, cut by the mask; on the meta device."""
    found = _run(data, "method.prune_rate=0.5")
    info = replace(found.info, num_classes=int(document("hermes")["facts"][f"classes_{data}"]["printed"]))
    method = methods.create(start.method_context(found.config, info))
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.rand(spec.shape, generator=generator) for name, spec in method.model_specs.items()}
    masks = method.pruned(values, method.pruned(values, {}))
    return cut(create.skeleton(found.config.model, info), masks)


def _pruned(data: str) -> float:
    """What is deployed of it."""
    return FLOAT32_BYTES * params(_cut(data))


def _times_fewer_macs(data: str) -> float:
    """The MACs of the dense net over those of the cut one."""
    found = _run(data)
    shape = found.info.example_shape
    whole = create.skeleton(found.config.model, found.info)
    return measure(whole, shape).macs / measure(_cut(data), shape).macs


def _cost(data: str, method: str) -> float:
    """A method's bytes beside FedAvg's."""
    whole = setting("hermes", f"{_DATA[data]}/fedavg").plan.bytes_per_run
    return setting("hermes", f"{_DATA[data]}/{method}").plan.bytes_per_run / whole


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
    **{f"figure10_{data}": partial(_times_fewer_macs, data) for data in _DATA},
    **{f"topk_{data}": partial(_cost, data, "topk") for data in _DATA},
    "lgfedavg_cifar10": partial(_cost, "cifar10", "lgfedavg"),
    "lgfedavg_figure2": partial(_cost, "cifar10", "lgfedavg_figure2"),
    "lgfedavg_emnist": partial(_cost, "emnist", "lgfedavg_emnist"),
    "lgfedavg_har": partial(_cost, "har", "lgfedavg_har"),
    "table4_cifar10": partial(_size, "cifar10", "model.name=lenet5"),
    "table4_emnist": partial(_size, "emnist", "model.name=cnn_hermes"),
    "table4_har": partial(_size, "har", "model.hidden=[300,100]"),
}
TABLES = {"table3": _table3}
CELLS = {"figure2": lambda of: setting("hermes", of.run).plan.bytes_per_run}

"""Ours for Hermes (MobiCom 2021): Tables 1, 3 and 4, Figure 2, sections 5.6 and 5.7. MB are 10^6 bytes, TB 10^12."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fedmpi.costs import FLOAT32_BYTES
from fedmpi.methods.values import Turn
from fedmpi.models import create
from fedmpi.papers import Cell, read
from fedmpi.verify.claims import Checks
from fedmpi.verify.nets import Setting, of_run, params, setting

_RUNS = {"cifar10": "cifar10_noniid", "emnist": "femnist_natural", "har": "har_natural"}
_APPLICATIONS = {"IC-CIFAR10": "cifar10", "IC-EMNIST": "emnist", "HAR": "har"}


def _run(data: str, *overrides: str) -> Setting:
    return setting(f"hermes/figure7.yaml@{_RUNS[data]}_hermes", *overrides)


def _num_devices(data: str) -> float:
    return _run(data).config.clients.count


def _num_classes(data: str) -> float:
    return _run(data).info.num_classes


def _size(data: str, *overrides: str, classes: int = 0) -> float:
    """Bytes of the dense net; `classes` where they are not those of the data."""
    found = _run(data, *overrides)
    info = replace(found.info, num_classes=classes) if classes else found.info
    return FLOAT32_BYTES * params(create.skeleton(found.config.model, info))


def _dense(data: str) -> float:
    """The dense net as in Table 3, which has the net of the classes that Table 1 prints."""
    return _size(data, classes=int(read("hermes").facts[f"classes_{data}"].printed))


def _pruned(data: str) -> float:
    """What the target share leaves of it."""
    return float(_dense(data) * _run(data).config.method.target_share)


def _saved(data: str) -> float:
    return _dense(data) - _pruned(data)


def _table3(cell: Cell) -> float:
    size = _dense if cell.column == "Baseline" else _pruned
    return sum(map(size, _RUNS)) if cell.block == "All Included" else size(_APPLICATIONS[cell.block])


def _as_printed(size: float) -> float:
    """The size, to 0.01 MB."""
    return round(size / 1e6, 2) * 1e6


def _saved_of_wrong_sum() -> float:
    printed = read("hermes").cell("table3/All Included/Baseline/size").printed
    return float(printed) * 1e6 - _as_printed(sum(map(_pruned, _RUNS)))


def _bandwidth_80() -> float:
    """Bytes of a round's cohort."""
    few, many = _run("cifar10"), setting("hermes/figure8.yaml@cifar10_noniid_hermes", "clients.per_round=80")
    traffic = []
    for found in (few, many):
        turn = found.method.costs(Turn(0))
        traffic.append((turn.down_bytes + turn.up_bytes) * found.config.clients.per_round)
    return traffic[1] / traffic[0]


CHECKS = Checks(
    facts={
        **{f"devices_{data}": partial(_num_devices, data) for data in _RUNS},
        **{f"classes_{data}": partial(_num_classes, data) for data in _RUNS},
        "saved_share": lambda: 1 - _pruned("emnist") / _dense("emnist"),
        "saved_emnist": lambda: _saved("emnist"),
        "saved_total": lambda: sum(map(_saved, _RUNS)),
        "table4_cifar10": lambda: _size("cifar10", "model.name=lenet5"),
        "table4_emnist": lambda: _size("emnist", "model.name=cnn_hermes"),
        "table4_har": lambda: _size("har", "model.hidden=[300,100]"),
        "bandwidth_80": _bandwidth_80,
    },
    cells={"table3": _table3, "figure2": lambda cell: of_run(cell.run).plan.bytes_per_run},
    readings={
        # Of CIFAR-10, and of the sizes as they are printed.
        "saved_emnist": lambda: _as_printed(_dense("cifar10")) - _as_printed(_pruned("cifar10")),
        "saved_total": _saved_of_wrong_sum,
    },
)

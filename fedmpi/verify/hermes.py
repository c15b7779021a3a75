"""Ours for Hermes (MobiCom 2021): Tables 1, 3 and 4, Figure 2, sections 5.6 and 5.7. MB are 10^6 bytes, TB 10^12."""

from __future__ import annotations

from functools import partial

from fedmpi.methods.values import Turn
from fedmpi.models import create
from fedmpi.papers import Cell, read
from fedmpi.verify.claims import Checks
from fedmpi.verify.nets import Setting, of_run, params, setting, with_classes

CHECKS = Checks()
FLOAT32_BYTES = 4
_RUNS = {"cifar10": "cifar10_noniid", "emnist": "femnist_natural", "har": "har_natural"}
_APPLICATIONS = {"IC-CIFAR10": "cifar10", "IC-EMNIST": "emnist", "HAR": "har"}


def _run(data: str, *overrides: str) -> Setting:
    return setting(f"hermes/figure7_{_RUNS[data]}_hermes", *overrides)


def _num_devices(data: str) -> float:
    return float(_run(data).config.clients.count)


def _num_classes(data: str) -> float:
    return float(_run(data).info.num_classes)


for _data in _RUNS:
    CHECKS.fact(f"devices_{_data}")(partial(_num_devices, _data))
    CHECKS.fact(f"classes_{_data}")(partial(_num_classes, _data))


def _size(data: str, *overrides: str, classes: int = 0) -> float:
    """Bytes of the dense net; `classes` where they are not those of the data."""
    found = _run(data, *overrides)
    info = with_classes(found.info, classes) if classes else found.info
    return float(FLOAT32_BYTES * params(create.skeleton(found.config.model, info)))


def _dense(data: str) -> float:
    """As in Table 3, which has the net of the classes that Table 1 prints."""
    return _size(data, classes=int(read("hermes").fact(f"classes_{data}").printed))


def _pruned(data: str) -> float:
    """What the target share leaves of it."""
    return float(_dense(data) * _run(data).config.method.target_share)


@CHECKS.table("table3")
def _table3(cell: Cell) -> float:
    size = _dense if cell.column == "Baseline" else _pruned
    return sum(map(size, _RUNS)) if cell.block == "All Included" else size(_APPLICATIONS[cell.block])


@CHECKS.fact("saved_share")
def _saved_share() -> float:
    return 1 - _pruned("emnist") / _dense("emnist")


@CHECKS.fact("saved_emnist")
def _saved_emnist() -> float:
    return _dense("emnist") - _pruned("emnist")


@CHECKS.reading("saved_emnist")
def _saved_cifar10() -> float:
    """Of the sizes as they are printed."""
    return _as_printed(_dense("cifar10")) - _as_printed(_pruned("cifar10"))


def _as_printed(size: float) -> float:
    """To 0.01 MB."""
    return round(size / 1e6, 2) * 1e6


@CHECKS.fact("saved_total")
def _saved_total() -> float:
    return sum(_dense(data) - _pruned(data) for data in _RUNS)


@CHECKS.reading("saved_total")
def _saved_of_wrong_sum() -> float:
    printed = read("hermes").cell("table3/All Included/Baseline/size").printed
    return float(printed) * 1e6 - _as_printed(sum(map(_pruned, _RUNS)))


CHECKS.fact("table4_cifar10")(partial(_size, "cifar10", "model.name=lenet5"))
CHECKS.fact("table4_emnist")(partial(_size, "emnist", "model.name=cnn_hermes"))
CHECKS.fact("table4_har")(partial(_size, "har", "model.hidden=[300,100]"))


@CHECKS.table("figure2")
def _bytes_of_run(cell: Cell) -> float:
    return of_run(cell.run).plan.bytes_per_run


@CHECKS.fact("bandwidth_80")
def _bandwidth_80() -> float:
    """Bytes of a round's cohort."""
    few, many = _run("cifar10"), setting("hermes/figure8_cifar10_noniid_hermes", "clients.per_round=80")
    traffic = []
    for found in (few, many):
        turn = found.method.costs(Turn(0))
        traffic.append((turn.down_bytes + turn.up_bytes) * found.config.clients.per_round)
    return traffic[1] / traffic[0]

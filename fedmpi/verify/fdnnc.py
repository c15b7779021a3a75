"""Ours for FDNNC (doi:10.1109/JIOT.2021.3088867): section I on AlexNet, section III.C on messages, Table II."""

from __future__ import annotations

from functools import partial

from torch import nn

from fedmpi.methods.fdnnc import BIG, FDNNC, SMALL
from fedmpi.methods.values import Turn
from fedmpi.models import create
from fedmpi.papers import read
from fedmpi.verify.claims import Checks, Ours, Sample
from fedmpi.verify.nets import params, setting, with_classes

CHECKS = Checks()
FLOAT32_BYTES = 4
# The paper means the AlexNet of ImageNet.
_IMAGENET_CLASSES = 1000
_CIFAR10, _FEMNIST = "fdnnc/table3_cifar10_iid_both_full", "fdnnc/table4_femnist_natural_both_full"


def _alexnet() -> nn.Module:
    found = setting(_CIFAR10)
    return create.skeleton(found.config.model, with_classes(found.info, _IMAGENET_CLASSES))


@CHECKS.fact("alexnet_params")
def _alexnet_params() -> float:
    return float(params(_alexnet()))


@CHECKS.fact("alexnet_bytes")
def _alexnet_bytes() -> float:
    return float(FLOAT32_BYTES * params(_alexnet()))


def _num_layers(kind: type[nn.Module]) -> float:
    return float(sum(isinstance(module, kind) for module in _alexnet().modules()))


@CHECKS.fact("fc_share")
def _fc_share() -> float:
    net = _alexnet()
    return sum(params(module) for module in net.modules() if isinstance(module, nn.Linear)) / params(net)


CHECKS.fact("alexnet_convs")(partial(_num_layers, nn.Conv2d))
CHECKS.fact("alexnet_fcs")(partial(_num_layers, nn.Linear))


@CHECKS.fact("samples_cifar10")
def _samples_cifar10() -> float:
    found = setting(_CIFAR10)
    return found.info.num_train / found.config.clients.count


@CHECKS.fact("samples_femnist")
def _samples_femnist() -> float:
    """Of the total that the same table prints."""
    return float(read("fdnnc").fact("total_femnist").printed) / setting(_FEMNIST).config.clients.count


@CHECKS.fact("middle_share")
def _middle_share() -> float:
    """Of Tables III and IV, between 0.2 and 0.7."""
    tables = read("fdnnc").tables
    columns = {cell.column for name in ("table3", "table4") for cell in tables[name].cells if "BOTH" in cell.block}
    (share,) = columns - {"0%", "20%", "70%", "100%"}
    return float(share.removesuffix("%")) / 100


@CHECKS.fact("devices_cifar10")
def _devices_cifar10() -> float:
    return float(setting(_CIFAR10).config.clients.count)


@CHECKS.fact("devices_femnist")
def _devices_femnist() -> float:
    return float(setting(_FEMNIST).config.clients.count)


@CHECKS.fact("classes_femnist")
def _classes_femnist() -> float:
    return float(setting(_FEMNIST).info.num_classes)


def _message(tier: int, upload: str) -> Ours:
    """What a device sends of a net that is a single FC layer, without its bias."""
    samples = []
    for data, ratio in (("cifar10", 0.1), ("cifar100", 0.1), ("cifar100", 0.3)):
        found = setting(_CIFAR10, f"data.name={data}", "model.name=mlp", "model.hidden=[]",
                        "method.layer_ranks={}", f"method.rank_ratio={ratio}", f"method.upload={upload}")  # fmt: skip
        assert isinstance(found.method, FDNNC)
        (layer,) = found.method.layers.values()
        at = {"M": layer.out_features, "N": layer.in_features, "r": layer.r(ratio)}
        samples.append(Sample(at, found.method.costs(Turn(tier)).up_bytes / FLOAT32_BYTES - layer.out_features))
    return tuple(samples)


CHECKS.fact("message_full")(partial(_message, BIG, "full"))
CHECKS.fact("message_small")(partial(_message, SMALL, "full"))
CHECKS.fact("message_half")(partial(_message, SMALL, "half"))
CHECKS.fact("message_half_iv")(partial(_message, SMALL, "half"))

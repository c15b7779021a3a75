"""Ours for FDNNC (doi:10.1109/JIOT.2021.3088867): section I on AlexNet, section III.C on messages, Table II."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from fedmpi.costs import FLOAT32_BYTES
from fedmpi.methods.fdnnc import BIG, FDNNC, SMALL
from fedmpi.methods.values import Turn
from fedmpi.models import create
from fedmpi.papers import read
from fedmpi.verify.claims import Checks, Ours, Sample
from fedmpi.verify.nets import params, setting

# The paper means the AlexNet of ImageNet.
_IMAGENET_CLASSES = 1000
_CIFAR10, _FEMNIST = "fdnnc/table3.yaml@cifar10_iid_both_full", "fdnnc/table4.yaml@femnist_natural_both_full"


def _alexnet() -> nn.Module:
    found = setting(_CIFAR10)
    return create.skeleton(found.config.model, replace(found.info, num_classes=_IMAGENET_CLASSES))


def _layers(kind: type[nn.Module]) -> list[nn.Module]:
    return [module for module in _alexnet().modules() if isinstance(module, kind)]


def _clients(config: str) -> int:
    return setting(config).config.clients.count


def _samples_femnist() -> float:
    """The samples as a share of the total that the same table prints."""
    return float(read("fdnnc").facts["total_femnist"].printed) / _clients(_FEMNIST)


def _middle_share() -> float:
    """The middle share of Tables III and IV, between 0.2 and 0.7."""
    tables = read("fdnnc").tables
    columns = {cell.column for name in ("table3", "table4") for cell in tables[name].cells if "BOTH" in cell.block}
    (share,) = columns - {"0%", "20%", "70%", "100%"}
    return float(share.removesuffix("%")) / 100


def _message(tier: int, upload: str) -> Ours:
    """What a device sends of a net that is a single FC layer, without its bias."""
    samples = []
    for data, ratio in (("cifar10", 0.1), ("cifar100", 0.1), ("cifar100", 0.3)):
        net = (f"data.name={data}", "model.name=mlp", "model.hidden=[]", "method.layer_ranks={}")
        found = setting(_CIFAR10, *net, f"method.rank_ratio={ratio}", f"method.upload={upload}")
        assert isinstance(found.method, FDNNC)
        (layer,) = found.method.layers.values()
        at = {"M": layer.out_features, "N": layer.in_features, "r": layer.r(ratio)}
        samples.append(Sample(at, found.method.costs(Turn(tier)).up_bytes / FLOAT32_BYTES - layer.out_features))
    return tuple(samples)


CHECKS = Checks(
    facts={
        "alexnet_params": lambda: params(_alexnet()),
        "alexnet_bytes": lambda: FLOAT32_BYTES * params(_alexnet()),
        "fc_share": lambda: sum(map(params, _layers(nn.Linear))) / params(_alexnet()),
        "alexnet_convs": lambda: len(_layers(nn.Conv2d)),
        "alexnet_fcs": lambda: len(_layers(nn.Linear)),
        "samples_cifar10": lambda: setting(_CIFAR10).info.num_train / _clients(_CIFAR10),
        "samples_femnist": _samples_femnist,
        "middle_share": _middle_share,
        "devices_cifar10": lambda: _clients(_CIFAR10),
        "devices_femnist": lambda: _clients(_FEMNIST),
        "classes_femnist": lambda: setting(_FEMNIST).info.num_classes,
        "message_full": lambda: _message(BIG, "full"),
        "message_small": lambda: _message(SMALL, "full"),
        "message_half": lambda: _message(SMALL, "half"),
        "message_half_iv": lambda: _message(SMALL, "half"),
    }
)

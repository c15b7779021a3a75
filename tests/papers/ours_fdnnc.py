"""Ours for FDNNC: section I on AlexNet, section III.C on messages, Tables I and II."""

from collections.abc import Callable
from dataclasses import replace

from model_inputs import params
from papers.claims import Ours, grid
from papers.nets import Setting, modules_of, setting
from torch import nn

from fedmpi.costs import FLOAT32_BYTES
from fedmpi.methods.fdnnc import BIG, FDNNC, SMALL
from fedmpi.methods.values import ClientLoad
from fedmpi.models import create


def _cifar10(*overrides: str) -> Setting:
    return setting("fdnnc", "cifar10/both_full_50", *overrides)


def _femnist() -> Setting:
    return setting("fdnnc", "femnist/both_full_50")


def _alexnet() -> nn.Module:
    """The AlexNet of ImageNet, which the paper means."""
    found = _cifar10()
    return create.skeleton(found.config.model, replace(found.info, num_classes=1000))


def _middle_share() -> float:
    """The middle share of Tables III and IV, between 0.2 and 0.7."""
    shares = {name.rpartition("_")[2] for name in grid("fdnnc").methods if name.startswith("both")}
    (share,) = shares - {"0", "20", "70", "100"}
    return float(share) / 100


def _weights(found: Setting, tier: int, num_biases: int) -> float:
    return params(found.method.net(tier, empty=True)) - num_biases


def _gradients(found: Setting, tier: int, num_biases: int) -> float:
    return found.method.costs(ClientLoad(tier)).up_bytes / FLOAT32_BYTES - num_biases


def _fc_layer(tier: int, upload: str, count: Callable[[Setting, int, int], float] = _gradients) -> Ours:
    """Counts a device's numbers in a net that is a single FC layer, by default those that it sends."""
    samples = []
    for data, ratio in (("cifar10", 0.1), ("cifar100", 0.1), ("cifar100", 0.3)):
        net = (f"data.name={data}", "model.name=mlp", "model.hidden=[]", "method.layer_ranks={}")
        found = _cifar10(*net, f"method.rank_ratio={ratio}", f"method.upload={upload}")
        assert isinstance(found.method, FDNNC)
        (layer,) = found.method.layers.values()
        at = {"M": layer.out_features, "N": layer.in_features, "r": layer.r(ratio)}
        samples.append((at, count(found, tier, layer.out_features)))
    return samples


FACTS = {
    "alexnet_params": lambda: params(_alexnet()),
    "alexnet_bytes": lambda: FLOAT32_BYTES * params(_alexnet()),
    "fc_share": lambda: sum(map(params, modules_of(_alexnet(), nn.Linear))) / params(_alexnet()),
    "alexnet_convs": lambda: len(modules_of(_alexnet(), nn.Conv2d)),
    "alexnet_fcs": lambda: len(modules_of(_alexnet(), nn.Linear)),
    "samples_cifar10": lambda: _cifar10().info.num_train / _cifar10().config.clients.count,
    "samples_femnist": lambda: 278033 / _femnist().config.clients.count,  # the total that the same table prints
    "middle_share": _middle_share,
    "devices_cifar10": lambda: _cifar10().config.clients.count,
    "devices_femnist": lambda: _femnist().config.clients.count,
    "classes_femnist": lambda: _femnist().info.num_classes,
    "table1_fc_forward": lambda: _fc_layer(BIG, "full", _weights),
    "table1_fc_backward": lambda: _fc_layer(BIG, "full"),
    "table1_svd_forward": lambda: _fc_layer(SMALL, "full", _weights),
    "table1_svd_backward": lambda: _fc_layer(SMALL, "full"),
    "message_full": lambda: _fc_layer(BIG, "full"),
    "message_small": lambda: _fc_layer(SMALL, "full"),
    "message_half": lambda: _fc_layer(SMALL, "half"),
    "message_half_iv": lambda: _fc_layer(SMALL, "half"),
}
CELLS = {}

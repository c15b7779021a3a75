"""Nets that nobody prepared for federated learning: torchvision's, by name, without pretrained weights."""

from __future__ import annotations

import difflib

from torch import nn

from fedmpi.errors import ConfigError
from fedmpi.models.nets.attention import open_attention

PREFIX = "torchvision:"
WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")
# `init_weights` is their default, said aloud because leaving it out warns.
ONE_OUTPUT = {"aux_logits": False, "init_weights": True}


def lacks(wanted: str) -> str:
    """Why torchvision has no net of this name; empty where it has one."""
    import torchvision

    known = torchvision.models.list_models(module=torchvision.models)
    if wanted in known:
        return ""
    close = difflib.get_close_matches(wanted, known, 1)
    hint = f"Did you mean '{PREFIX}{close[0]}'?" if close else f"Known: {', '.join(known)}"
    return f"torchvision {torchvision.__version__} has no classification net '{wanted}'. {hint}"


def torchvision_net(name: str, num_classes: int, width: float) -> nn.Module:
    """The net behind `torchvision:NAME`; raises `ConfigError` for a name unknown there or a width but 1."""
    import torchvision

    wanted = name.removeprefix(PREFIX)
    if problem := lacks(wanted):
        raise ConfigError("model.name", problem)
    if width != 1:
        raise ConfigError("model.name", f"'{name}' has no width multiplier; asked for width {width:g}, allowed is 1")
    extra = ONE_OUTPUT if wanted in WITH_AUXILIARY_HEADS else {}
    net = torchvision.models.get_model(wanted, weights=None, num_classes=num_classes, **extra)
    return open_attention(net)

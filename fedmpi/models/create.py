"""A net out of its options: with values on the CPU (`build`), or shapes only (`skeleton`)."""

from __future__ import annotations

import torch
from torch import nn

from fedmpi import seeds
from fedmpi.errors import ConfigError
from fedmpi.models import admission
from fedmpi.models.options import Inputs, Model
from fedmpi.models.width import Rounding, Width

_PLURALS = {"image": "images", "vector": "vectors", "tokens": "tokens"}


def build(options: Model, info: Inputs, seed: int, width: float = 1.0, rounding: Rounding = "round") -> nn.Module:
    """Returns the initialised net on the CPU, in float32; `width` multiplies the width that the options ask for.

    The same arguments give the same values everywhere, and the global random generators are left
    as they were. Raises `ConfigError` if the model cannot take such data, or is no net that clients
    can train one after another (`models.admission`).
    """
    return _net(options, info, Width(width, rounding), "cpu", seeds.mix("init", seed))


def skeleton(options: Model, info: Inputs, width: float = 1.0, rounding: Rounding = "round") -> nn.Module:
    """Returns the net of `build` on the meta device: names, shapes and modules, no values and no memory."""
    return _net(options, info, Width(width, rounding), "meta", 0)


def conversions(options: Model, info: Inputs) -> tuple[str, ...]:
    """Returns what is changed in the net before it is trained, one line at most. Raises `ConfigError`."""
    return admission.conversions(_from_options(options, info, Width(), "meta", 0))


def _net(options: Model, info: Inputs, width: Width, device: str, init_seed: int) -> nn.Module:
    return admission.admit(_from_options(options, info, width, device, init_seed), options.name)


def _from_options(options: Model, info: Inputs, width: Width, device: str, init_seed: int) -> nn.Module:
    if info.kind not in options.kinds:
        takes = " and ".join(_PLURALS[kind] for kind in options.kinds)
        raise ConfigError("model.name", f"'{options.name}' takes {takes}, the data are of kind '{info.kind}'")
    with seeds.python_and_numpy(init_seed), torch.random.fork_rng(devices=[]), torch.device(device):
        # Not torch.manual_seed: that one would reseed the GPUs, too.
        torch.default_generator.manual_seed(init_seed)
        return admission.as_module(options.net(info, width), options.name)

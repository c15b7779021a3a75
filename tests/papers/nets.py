"""The nets behind the runs of a paper, as `fedmpi plan` builds them: on the meta device."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import torch
from torch import nn

from fedmpi import methods
from fedmpi.config.address import CONFIGS
from fedmpi.config.schema import Config
from fedmpi.data.dataset import DataInfo
from fedmpi.methods.protocol import Method
from fedmpi.models import create
from fedmpi.results.grid_runs import load_address
from fedmpi.running import forecast, start

SKELETONS: dict[str, nn.Module] = {}
SIZES: dict[str, float] = {}


@dataclass(frozen=True)
class Setting:
    """A run's config and what is built from it."""

    config: Config

    @cached_property
    def info(self) -> DataInfo:
        return self.config.data.used()

    @cached_property
    def method(self) -> Method:
        return methods.create(replace(start.method_context(self.config, self.info), make=self._make))

    def _make(self, width: float = 1.0, rounding: str = "round", seed: int | None = None, *, empty: bool) -> nn.Module:
        assert empty  # a count needs no values
        key = f"{self.config.model.model_dump_json()}|{self.info}|{width}|{rounding}"
        if key not in SKELETONS:
            SKELETONS[key] = create.skeleton(self.config.model, self.info, width, rounding)
        return copy.deepcopy(SKELETONS[key])

    @cached_property
    def plan(self) -> forecast.Forecast:
        return forecast.forecast(self.config, 1, self.method)

    @cached_property
    def model(self) -> nn.Module:
        """The config's own net, whole."""
        return self._make(empty=True)

    def net(self, name: str) -> nn.Module:
        """Builds the tested net of this name."""
        tiers = {net.name: net.net for net in self.method.tested()}
        return self.method.net(tiers[name], empty=True)


@cache
def setting(paper: str, run: str, *overrides: str) -> Setting:
    """Returns the setting of a run, SETTING/METHOD of the paper's grid file."""
    return Setting(load_address(f"{CONFIGS}/papers/{paper}.yaml@{run}", overrides))


def params(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def size_of(paper: str, run: str, net: str) -> float:
    """Counts the parameters of a run's tested net, NaN if it has none of this name; equal settings are counted once."""
    found = setting(paper, run)
    config = found.config
    key = "|".join(part.model_dump_json() for part in (config.model, config.method, config.data)) + net
    if key not in SIZES:
        names = [tested.name for tested in found.method.tested()]
        SIZES[key] = params(found.net(net)) if net in names else math.nan
    return SIZES[key]


@dataclass(frozen=True)
class Outputs:
    """Parameters and MACs of convs, and the output numbers of convs and norms, of one example."""

    params: float
    macs: float
    outputs: float


def measured(net: nn.Module, example_shape: Sequence[int], wanted: Callable[[str], bool]) -> Outputs:
    """Measures the convs and norms whose names are wanted."""
    tally = [0, 0, 0]

    def count(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        tally[2] += output[0].numel()
        if isinstance(module, nn.Conv2d):
            tally[0] += module.weight.numel()
            tally[1] += module.weight.numel() * output[0, 0].numel()

    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d) and wanted(name):
            module.register_forward_hook(count)
    net(torch.empty(2, *example_shape, device="meta"))
    return Outputs(*map(float, tally))

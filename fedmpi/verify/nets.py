"""The nets behind a run of the papers, as `fedmpi plan` builds them: on the meta device, in a moment."""

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
from fedmpi.config.load import load
from fedmpi.config.schema import Config
from fedmpi.data.dataset import DataInfo
from fedmpi.methods.protocol import Method
from fedmpi.models import create
from fedmpi.models.width import Rounding
from fedmpi.papers import Cell, Run
from fedmpi.running import forecast, start


@dataclass(frozen=True)
class Setting:
    """A run's config and what is built from it."""

    config: Config

    @cached_property
    def info(self) -> DataInfo:
        return self.config.data.used()

    @cached_property
    def method(self) -> Method:
        context = start.method_context(self.config, self.info)
        return methods.create(replace(context, make=self._make))

    def _make(
        self, width: float = 1.0, rounding: Rounding = "round", seed: int | None = None, *, empty: bool = False
    ) -> nn.Module:
        assert empty  # a count needs no values
        return self._skeleton(width, rounding)

    def _skeleton(self, width: float = 1.0, rounding: Rounding = "round") -> nn.Module:
        """A net of the config's model; a copy of an equal one that was built before costs less."""
        key = f"{self.config.model.model_dump_json()}|{self.info}|{width}|{rounding}"
        if key not in _SKELETONS:
            _SKELETONS[key] = create.skeleton(self.config.model, self.info, width, rounding)
        return copy.deepcopy(_SKELETONS[key])

    @cached_property
    def plan(self) -> forecast.Forecast:
        return forecast.forecast(self.config, 1, self.method)

    @cached_property
    def model(self) -> nn.Module:
        """The config's own net, whole."""
        return self._skeleton()

    def net(self, name: str) -> nn.Module:
        """The tested net of this name."""
        tested = {net.name: net.net for net in self.method.tested()}
        return self.method.net(tested[name], empty=True)


@cache
def setting(config: str, *overrides: str) -> Setting:
    """The setting of a config, by its address under `configs/`. Raises `ConfigError`."""
    return Setting(load(CONFIGS / config, overrides))


def of_run(run: Run | None, *overrides: str) -> Setting:
    """The setting of a cell's run, with some overrides more."""
    assert run is not None
    return setting(run.config, *run.overrides, *overrides)


_PARAMS: dict[str, float] = {}
_SKELETONS: dict[str, nn.Module] = {}


def params_of_cell(cell: Cell) -> float:
    """Parameters of the cell's tested net, NaN if the run has none of this name; equal settings are counted once."""
    found = of_run(cell.run)
    config = found.config
    alike = "|".join(section.model_dump_json() for section in (config.model, config.method, config.data))
    key = f"{alike}|{cell.net}"
    if key not in _PARAMS:
        names = [net.name for net in found.method.tested()]
        _PARAMS[key] = float(params(found.net(cell.net))) if cell.net in names else math.nan
    return _PARAMS[key]


def params(net: nn.Module) -> int:
    """How many learnable numbers a net has."""
    return sum(parameter.numel() for parameter in net.parameters())


@dataclass(frozen=True)
class Outputs:
    """What the layers asked for have: parameters, MACs and output numbers of one example, in this order of running."""

    params: float
    macs: float
    outputs: float


def measured(net: nn.Module, example_shape: Sequence[int], wanted: Callable[[str], bool]) -> Outputs:
    """What the convs and norms whose names are wanted cost and keep; parameters and MACs are those of convs."""
    tally = [0, 0, 0]

    def count(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        tally[2] += output[0].numel()
        if isinstance(module, nn.Conv2d):
            tally[0] += module.weight.numel()
            tally[1] += module.weight.numel() * output[0, 0].numel()

    kinds = (nn.Conv2d, nn.BatchNorm2d)
    found = [module for name, module in net.named_modules() if isinstance(module, kinds) and wanted(name)]
    handles = [module.register_forward_hook(count) for module in found]
    try:
        net(torch.empty(2, *example_shape, device="meta"))
    finally:
        for handle in handles:
            handle.remove()
    return Outputs(*map(float, tally))

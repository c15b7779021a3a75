"""The nets behind the runs of a paper, as `fedmpi plan` builds them: on the meta device."""

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from model_inputs import params
from torch import nn

from fedmpi import methods
from fedmpi.config.address import CONFIGS
from fedmpi.config.schema import Config
from fedmpi.data.dataset import DataInfo
from fedmpi.methods.protocol import Method
from fedmpi.models import create
from fedmpi.results.grid_file import load_address
from fedmpi.running import forecast, start

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
        return methods.create(start.method_context(self.config, self.info))

    @cached_property
    def plan(self) -> forecast.Forecast:
        return forecast.forecast(self.config, 1)

    @cached_property
    def model(self) -> nn.Module:
        """The config's own net, whole."""
        return create.skeleton(self.config.model, self.info)

    def net(self, name: str) -> nn.Module:
        """Builds the tested net of this name."""
        tiers = {net.name: net.index for net in self.method.tested()}
        return self.method.net(tiers[name], empty=True)


@cache
def setting(paper: str, run: str, *overrides: str) -> Setting:
    """Returns the setting of a run, SETTING/METHOD of the paper's grid file."""
    return Setting(load_address(f"{CONFIGS}/papers/{paper}.yaml@{run}", overrides))


def modules_of(net: nn.Module, kind: type[nn.Module]) -> list[Any]:
    return [module for module in net.modules() if isinstance(module, kind)]


def size_of(paper: str, run: str, net: str) -> float:
    """Counts the parameters of a run's tested net, NaN if it has none of this name; equal settings are counted once."""
    found = setting(paper, run)
    config = found.config
    key = "|".join(part.model_dump_json() for part in (config.model, config.method, config.data)) + net
    if key not in SIZES:
        names = [tested.name for tested in found.method.tested()]
        SIZES[key] = params(found.net(net)) if net in names else math.nan
    return SIZES[key]

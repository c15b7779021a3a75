"""Options of torchvision's nets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmpi.models.options import Inputs, Model
from fedmpi.models.width import Width

if TYPE_CHECKING:
    from torch import nn


class Torchvision(Model):
    """Any classification net of torchvision, initialised as torchvision does, BatchNorm with batch statistics."""

    name: Annotated[str, Field(pattern=r"^torchvision:\w+$")] = "torchvision:resnet50"
    """Any classification net of torchvision by its name, as torchvision:resnet50."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets.torchvision_nets import torchvision_net

        return torchvision_net(self.name, info.num_classes, width.factor)

"""Options of VGG-16 and AlexNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.models.options import Dropout, Inputs, ScaledNet
from fedmpi.models.width import Width

if TYPE_CHECKING:
    from torch import nn


class Vgg16(ScaledNet):
    """VGG-16 without BatchNorm, torchvision's layers: 134,301,514 parameters at 10 classes and 3 channels."""

    name: str = "vgg16"
    """VGG-16 without BatchNorm (Hermes): images with a side below 32 are zero-padded to 32."""
    dropout: Dropout = 0.5
    """Share of the hidden linear layers' outputs that are dropped in training."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets import classic

        return classic.Vgg16(info.example_shape, info.num_classes, width.times(self.width), self.dropout)


class AlexNet(ScaledNet):
    """AlexNet, torchvision's layers: 61,100,840 parameters at 1,000 classes and 3 channels."""

    name: str = "alexnet"
    """AlexNet (FDNNC): pixels are repeated until both sides of the image have 63 or more."""
    dropout: Dropout = 0.5
    """Share of the first two linear layers' inputs that are dropped in training."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets import classic

        return classic.AlexNet(info.example_shape, info.num_classes, width.times(self.width), self.dropout)

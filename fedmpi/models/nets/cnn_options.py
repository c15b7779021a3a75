"""Options of the papers' small CNNs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fedmpi.models.options import Inputs, ScaledNet
from fedmpi.models.width import Width

if TYPE_CHECKING:
    from torch import nn


class SmallCnn(ScaledNet):
    """What the small CNNs share: the net is made by the plan of this name in `cnn.PLANS`."""

    plan: ClassVar[str]

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets.cnn import PLANS, Cnn

        return Cnn(PLANS[self.plan], info.example_shape, info.num_classes, width.times(self.width))


class Lenet5(SmallCnn):
    """LeNet-5: 62,006 parameters at 10 classes and 3x32x32."""

    plan: ClassVar[str] = "lenet5"
    name: str = "lenet5"
    """LeNet-5 (Hermes): images with a side below 32 are zero-padded to 32."""


class CnnHermes(SmallCnn):
    """10 and 20 kernels 5x5, 512 hidden units: 201,438 parameters at 62 classes and 1x28x28."""

    plan: ClassVar[str] = "cnn_hermes"
    name: str = "cnn_hermes"
    """Hermes's CNN for EMNIST: images with a side below 28 are zero-padded to 28."""


class CnnFemnist(SmallCnn):
    """32 and 64 kernels 5x5: 246,590 parameters at 62 classes and 1x28x28."""

    plan: ClassVar[str] = "cnn_femnist"
    name: str = "cnn_femnist"
    """PriSM's CNN for FEMNIST, for images of any size."""

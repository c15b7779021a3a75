"""The small CNNs of the papers: two convs, each followed by ReLU and 2 x 2 max-pooling, then linear layers.

LeNet-5: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition",
1998, with the sizes of Table 4, IC-CIFAR10, of Li, Sun, Li, Pu, Li, Chen, "Hermes: An efficient
federated learning framework for heterogeneous mobile clients", MobiCom 2021. `cnn_hermes`: its
column IC-EMNIST; the table leaves the kernels open, and 5 x 5 without padding gives 201,438
parameters. `cnn_femnist`: Niu, Prakash, Kundu, Lee, Avestimehr, "Federated learning
of large models at the edge via principal sub-model training" (PriSM), arXiv:2208.13141, Table 5
with the kernels, widths and 62 classes of its code; `cnn_prism` as the table prints it, padded as the
code does. Initialisation: torch's default.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedmpi.models.nets.shared import chained, linear_layers, padding_to
from fedmpi.models.options import Inputs, ScaledNet
from fedmpi.models.width import Width

POOL = 2


@dataclass(frozen=True)
class Plan:
    """Channels of the two convs and sizes of the hidden linear layers, at width 1.

    Images with a side below `least_side` are zero-padded to it; larger ones make the first linear
    layer larger. `same`: convs pad their inputs, so that they keep the side. `kernels`: their sides.
    """

    channels: tuple[int, int]
    hidden: tuple[int, ...]
    least_side: int
    same: bool = False
    kernels: tuple[int, int] = (5, 5)


def cnn(plan: Plan, info: Inputs, width: Width) -> nn.Sequential:
    """Makes a net (B, C, H, W) -> (B, num_classes)."""
    pad, (height, breadth) = padding_to(info.example_shape, plan.least_side)
    features = nn.Sequential()
    channels = info.example_shape[0]
    for kernel, out_channels in zip(plan.kernels, map(width.of, plan.channels), strict=True):
        padding = kernel // 2 if plan.same else 0
        conv = nn.Conv2d(channels, out_channels, kernel, padding=padding)
        features.extend([conv, nn.ReLU(inplace=True), nn.MaxPool2d(POOL)])
        height, breadth = ((side + 2 * padding - kernel + 1) // POOL for side in (height, breadth))
        channels = out_channels
    hidden = [width.of(size) for size in plan.hidden]
    classifier = linear_layers(channels * height * breadth, hidden, info.num_classes)
    return chained(pad=pad, features=features, flatten=nn.Flatten(), classifier=classifier)


class Lenet5(ScaledNet):
    """LeNet-5: 62,006 parameters at 10 classes and 3x32x32."""

    plan: ClassVar[Plan] = Plan((6, 16), (120, 84), 32)
    name: str = "lenet5"
    """LeNet-5 (Hermes): images with a side below 32 are zero-padded to 32."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        return cnn(self.plan, info, width.times(self.width))


class CnnHermes(Lenet5):
    """10 and 20 kernels 5x5, 512 hidden units: 201,438 parameters at 62 classes and 1x28x28."""

    plan: ClassVar[Plan] = Plan((10, 20), (512,), 28)
    name: str = "cnn_hermes"
    """Hermes's CNN for EMNIST: images with a side below 28 are zero-padded to 28."""


class CnnFemnist(Lenet5):
    """32 and 64 kernels 5x5: 246,590 parameters at 62 classes and 1x28x28."""

    plan: ClassVar[Plan] = Plan((32, 64), (), 4, same=True)
    name: str = "cnn_femnist"
    """PriSM's CNN for FEMNIST, for images of any size."""


class CnnPrism(Lenet5):
    """64 kernels 5x5, then 64 of 3x3: 233,086 parameters at 62 classes and 1x28x28."""

    plan: ClassVar[Plan] = Plan((64, 64), (), 4, same=True, kernels=(5, 3))
    name: str = "cnn_prism"
    """PriSM's CNN as its Table 5 prints it: 64 kernels 5x5, then 64 of 3x3."""

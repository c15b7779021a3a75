"""Convs with ReLU and max-pooling, then linear layers: the small CNNs of the papers, VGG-16 and AlexNet.

LeNet-5: LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998, with the sizes
of Table 4, IC-CIFAR10, of Li, Sun, Li, Pu, Li, Chen, "Hermes: An efficient federated learning framework for
heterogeneous mobile clients", MobiCom 2021. `cnn_hermes`: its column IC-EMNIST; the table leaves the kernels open, and
5 x 5 without padding gives 201,438 parameters. `cnn_femnist`: Niu, Prakash, Kundu, Lee, Avestimehr, "Federated learning
of large models at the edge via principal sub-model training" (PriSM), arXiv:2208.13141, Table 5 with the kernels,
widths and 62 classes of its code; `cnn_prism` as the table prints it, padded as the code does.

VGG-16 without BatchNorm and AlexNet have torchvision's layers. Simonyan, Zisserman, "Very deep convolutional networks
for large-scale image recognition", arXiv:1409.1556 (Hermes); Krizhevsky, "One weird trick for parallelizing
convolutional neural networks", arXiv:1404.5997 (FDNNC). The poolings to 7 x 7 and 6 x 6 give the linear layers the same
size for every image.

Initialisation: torch's default, but of VGG-16 Kaiming normal, fan-in, on every weight, because at torch's default its
logits differ by less than 1e-7 between images, and it stays at chance.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedmpi.models.nets.shared import (
    SlicedAvgPool2d,
    chained,
    enlargement_to,
    kaiming_normal,
    linear_layers,
    padding_to,
)
from fedmpi.models.options import Inputs, ScaledNet
from fedmpi.models.width import Width

HIDDEN = 4096

VGG16_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
# Five halvings leave one pixel of 32.
VGG16_SIDE = 32
VGG16_POOLED = 7

# The least that the stem (11 x 11, stride 4) and the three poolings leave one pixel of: 63, 15, 7, 3, 1.
ALEXNET_SIDE = 63
ALEXNET_POOLED = 6


@dataclass(frozen=True)
class Conv:
    """A conv with this many outputs and a ReLU behind it, and max-pooling over `pool` pixels if that is not 0, every
    second of which is kept."""

    channels: int
    kernel: int
    padding: int = 0
    stride: int = 1
    pool: int = 0


def conv_layers(channels: int, convs: Iterable[Conv]) -> nn.Sequential:
    """Returns convs for images of so many channels, one after the other."""
    layers = nn.Sequential()
    for conv in convs:
        layers.append(nn.Conv2d(channels, conv.channels, conv.kernel, conv.stride, conv.padding))
        layers.append(nn.ReLU(inplace=True))
        if conv.pool:
            layers.append(nn.MaxPool2d(conv.pool, 2))
        channels = conv.channels
    return layers


def vgg(info: Inputs, width: Width) -> nn.Sequential:
    """Makes a net (B, C, H, W) -> (B, num_classes); images with a side below 32 are zero-padded to 32."""
    pad, _ = padding_to(info.example_shape, VGG16_SIDE)
    convs = []
    for *others, last in VGG16_STAGES:
        convs += [Conv(width.of(size), 3, padding=1) for size in others]
        convs.append(Conv(width.of(last), 3, padding=1, pool=2))
    features = conv_layers(info.example_shape[0], convs)
    inputs = convs[-1].channels * VGG16_POOLED**2
    classifier = linear_layers(inputs, [width.of(HIDDEN)] * 2, info.num_classes, drops="behind")
    pool = SlicedAvgPool2d(VGG16_POOLED)
    net = chained(pad=pad, features=features, pool=pool, flatten=nn.Flatten(), classifier=classifier)
    return net.apply(kaiming_normal)


def alex(info: Inputs, width: Width) -> nn.Sequential:
    """Makes a net (B, C, H, W) -> (B, num_classes); where a side is below 63, pixels are repeated (32: twice)."""
    first, second, third, fourth = map(width.of, (64, 192, 384, 256))
    convs = (
        Conv(first, 11, padding=2, stride=4, pool=3),
        Conv(second, 5, padding=2, pool=3),
        Conv(third, 3, padding=1),
        Conv(fourth, 3, padding=1),
        Conv(fourth, 3, padding=1, pool=3),
    )
    features = conv_layers(info.example_shape[0], convs)
    inputs = fourth * ALEXNET_POOLED**2
    classifier = linear_layers(inputs, [width.of(HIDDEN)] * 2, info.num_classes, drops="before")
    enlarge = enlargement_to(info.example_shape, ALEXNET_SIDE)
    pool = SlicedAvgPool2d(ALEXNET_POOLED)
    return chained(enlarge=enlarge, features=features, pool=pool, flatten=nn.Flatten(), classifier=classifier)


class Vgg16(ScaledNet):
    """VGG-16 without BatchNorm, torchvision's layers: 134,301,514 parameters at 10 classes and 3 channels."""

    make: ClassVar = vgg
    name: str = "vgg16"
    """VGG-16 without BatchNorm (Hermes): images with a side below 32 are zero-padded to 32."""


class AlexNet(ScaledNet):
    """AlexNet, torchvision's layers: 61,100,840 parameters at 1,000 classes and 3 channels."""

    make: ClassVar = alex
    name: str = "alexnet"
    """AlexNet (FDNNC): pixels are repeated until both sides of the image have 63 or more."""


class Lenet5(ScaledNet):
    """LeNet-5: 62,006 parameters at 10 classes and 3x32x32."""

    channels: ClassVar[tuple[int, int]] = (6, 16)
    kernels: ClassVar[tuple[int, int]] = (5, 5)
    pads: ClassVar[bool] = False
    """Whether convs pad their inputs, so that they keep the side."""
    hidden: ClassVar[tuple[int, ...]] = (120, 84)
    least_side: ClassVar[int] = 32
    """Images with a smaller side are zero-padded to it; larger ones make the first linear layer larger."""
    name: str = "lenet5"
    """LeNet-5 (Hermes): images with a side below 32 are zero-padded to 32."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        """Makes a net (B, C, H, W) -> (B, num_classes)."""
        width = width.times(self.width)
        pad, (height, breadth) = padding_to(info.example_shape, self.least_side)
        convs = []
        for size, kernel in zip(self.channels, self.kernels, strict=True):
            padding = kernel // 2 if self.pads else 0
            convs.append(Conv(width.of(size), kernel, padding, pool=2))
            height, breadth = ((side + 2 * padding - kernel + 1) // 2 for side in (height, breadth))
        features = conv_layers(info.example_shape[0], convs)
        inputs = convs[-1].channels * height * breadth
        classifier = linear_layers(inputs, map(width.of, self.hidden), info.num_classes)
        return chained(pad=pad, features=features, flatten=nn.Flatten(), classifier=classifier)


class CnnHermes(Lenet5):
    """10 and 20 kernels 5x5, 512 hidden units: 201,438 parameters at 62 classes and 1x28x28."""

    channels: ClassVar[tuple[int, int]] = (10, 20)
    hidden: ClassVar[tuple[int, ...]] = (512,)
    least_side: ClassVar[int] = 28
    name: str = "cnn_hermes"
    """Hermes's CNN for EMNIST: images with a side below 28 are zero-padded to 28."""


class CnnFemnist(Lenet5):
    """32 and 64 kernels 5x5: 246,590 parameters at 62 classes and 1x28x28."""

    channels: ClassVar[tuple[int, int]] = (32, 64)
    pads: ClassVar[bool] = True
    hidden: ClassVar[tuple[int, ...]] = ()
    least_side: ClassVar[int] = 4
    name: str = "cnn_femnist"
    """PriSM's CNN for FEMNIST, for images of any size."""


class CnnPrism(CnnFemnist):
    """64 kernels 5x5, then 64 of 3x3: 233,086 parameters at 62 classes and 1x28x28."""

    channels: ClassVar[tuple[int, int]] = (64, 64)
    kernels: ClassVar[tuple[int, int]] = (5, 3)
    name: str = "cnn_prism"
    """PriSM's CNN as its Table 5 prints it: 64 kernels 5x5, then 64 of 3x3."""

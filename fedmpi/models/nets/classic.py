"""VGG-16 without BatchNorm and AlexNet: torchvision's layers, for images of any size.

Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition",
arXiv:1409.1556 (Hermes); Krizhevsky, "One weird trick for parallelizing
convolutional neural networks", arXiv:1404.5997 (FDNNC). The poolings to 7 x 7 and
6 x 6 give the linear layers the same size for every image.

Initialisation: AlexNet as torch does it; VGG-16 Kaiming normal, fan-in, on every weight, because at
torch's default its logits differ by less than 1e-7 between images, and it stays at chance.
"""

from typing import ClassVar

from torch import nn

from fedmpi.models.nets.shared import SlicedAvgPool2d, chained, enlargement_to, kaiming_normal, padding_to
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


def vgg(info: Inputs, width: Width) -> nn.Sequential:
    """Makes a net (B, C, H, W) -> (B, num_classes); images with a side below 32 are zero-padded to 32."""
    pad, _ = padding_to(info.example_shape, VGG16_SIDE)
    features = nn.Sequential()
    channels = info.example_shape[0]
    for stage in VGG16_STAGES:
        for out_channels in map(width.of, stage):
            features.extend([nn.Conv2d(channels, out_channels, 3, padding=1), nn.ReLU(inplace=True)])
            channels = out_channels
        features.append(nn.MaxPool2d(2))
    hidden = width.of(HIDDEN)
    classifier = nn.Sequential(
        nn.Linear(channels * VGG16_POOLED**2, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(hidden, info.num_classes),
    )
    pool = SlicedAvgPool2d(VGG16_POOLED)
    net = chained(pad=pad, features=features, pool=pool, flatten=nn.Flatten(), classifier=classifier)
    return net.apply(kaiming_normal)


def alex(info: Inputs, width: Width) -> nn.Sequential:
    """Makes a net (B, C, H, W) -> (B, num_classes); where a side is below 63, pixels are repeated (32: twice)."""
    first, second, third, fourth = map(width.of, (64, 192, 384, 256))
    features = nn.Sequential(
        nn.Conv2d(info.example_shape[0], first, 11, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(second, third, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(third, fourth, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(fourth, fourth, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
    )
    hidden = width.of(HIDDEN)
    classifier = nn.Sequential(
        nn.Dropout(),
        nn.Linear(fourth * ALEXNET_POOLED**2, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, info.num_classes),
    )
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

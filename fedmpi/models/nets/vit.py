"""A small vision transformer for images of any size: torchvision's layers.

Dosovitskiy et al., "An image is worth 16x16 words", arXiv:2010.11929, at the size of DeiT-S: Touvron
et al., "Training data-efficient image transformers & distillation through attention",
arXiv:2012.12877, Table 1, with patches of 4 x 4 instead of 16 x 16 for images of 32 x 32. (FedHM's
code has one for images of 224 x 224, with low-rank additions to its layers instead of factors.)

Initialisation: torchvision's, but for the classifier, which has DeiT's truncated normal of 0.02: with
torchvision's zeros its two factors would be zero, too, and no gradient would ever move them.
"""

from typing import ClassVar

from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer

from fedmpi.models.nets.attention import open_attention
from fedmpi.models.nets.shared import padding_to
from fedmpi.models.options import Inputs, Multiplier, ScaledNet
from fedmpi.models.width import Width

MLP_RATIO = 4
HEAD_STD = 0.02


class Vit(VisionTransformer):
    """(B, C, H, W) -> (B, num_classes); images are zero-padded to the next square that patches fill.

    `embedding` is the number of values of a patch, a multiple of `heads`. A narrower net has as many heads.
    """

    conv_proj: nn.Conv2d

    def __init__(
        self, info: Inputs, width: Width, *, patch: int = 4, embedding: int = 384, depth: int = 12, heads: int = 6
    ) -> None:
        shape = info.example_shape
        pad, (side, _) = padding_to(shape, -(-max(shape[1:]) // patch) * patch)
        size = heads * width.of(embedding // heads)
        hidden = width.of(MLP_RATIO * embedding)
        super().__init__(side, patch, depth, heads, size, hidden, num_classes=info.num_classes)
        self.pad = pad
        if shape[0] != self.conv_proj.in_channels:
            self.conv_proj = nn.Conv2d(shape[0], size, patch, stride=patch)
            nn.init.trunc_normal_(self.conv_proj.weight, std=(shape[0] * patch**2) ** -0.5)
            nn.init.zeros_(self.conv_proj.get_parameter("bias"))
        nn.init.trunc_normal_(self.heads.head.weight, std=HEAD_STD)
        open_attention(self)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.pad(x))


class VitSmall(ScaledNet):
    """A vision transformer of DeiT-S's size: 21,342,346 parameters at 10 classes and 3x32x32."""

    make: ClassVar = Vit
    name: str = "vit_small"
    """A vision transformer of DeiT-S's size: images are zero-padded to whole patches."""
    width: Multiplier = 1.0
    """Width multiplier: each head has round(width * 64) numbers, the stream six times as many."""

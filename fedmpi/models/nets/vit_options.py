"""Options of the small vision transformer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmpi.config.schema import Count
from fedmpi.models.options import Dropout, Inputs, Multiplier, ScaledNet
from fedmpi.models.width import Width

if TYPE_CHECKING:
    from torch import nn


class VitSmall(ScaledNet):
    """A vision transformer of DeiT-S's size: 21,342,346 parameters at 10 classes and 3x32x32."""

    name: str = "vit_small"
    """A vision transformer of DeiT-S's size: images are zero-padded to whole patches."""
    width: Multiplier = 1.0
    """Width multiplier: each head has round(width * embedding / heads) numbers, the stream `heads` times as many."""
    patch: Count = 4
    """Pixels of a patch's side: 4 makes 64 patches of 32x32, and 49 of 28x28."""
    embedding: Count = 384
    """Numbers for each patch, a multiple of `heads`; the perceptron of a block has four times as many inside."""
    depth: Annotated[int, Field(ge=1, le=50)] = 12
    """Blocks of attention and perceptron."""
    heads: Count = 6
    """Attention heads in each block, at every width."""
    dropout: Dropout = 0.0
    """Share of the patches' numbers, and of each block's results, that are dropped in training."""

    def problems(self, config: object) -> Iterator[tuple[str, str]]:
        if self.embedding % self.heads:
            todo = f"give a multiple of {self.heads}, or other heads"
            yield "model.embedding", f"{self.embedding} numbers cannot be shared by {self.heads} heads; {todo}"

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets.vit import Vit

        sizes = {name: getattr(self, name) for name in ("patch", "depth", "heads", "embedding", "dropout")}
        return Vit(info.example_shape, info.num_classes, width.times(self.width), **sizes)

"""Options of the multi-layer perceptrons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from fedmpi.config.schema import Count
from fedmpi.models.options import Inputs, ScaledNet
from fedmpi.models.width import Width

if TYPE_CHECKING:
    from torch import nn


class Mlp(ScaledNet):
    """A multi-layer perceptron on vectors or flattened images."""

    kinds: ClassVar[tuple[str, ...]] = ("image", "vector")
    name: str = "mlp"
    """A multi-layer perceptron on vectors or flattened images."""
    hidden: Annotated[tuple[Count, ...], Field(strict=False, max_length=8)] = (1024, 512)
    """Sizes of the hidden layers; none is multinomial logistic regression."""

    @property
    def dense_layers(self) -> int:
        """There is no stem."""
        return 0

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets import mlp

        hidden = [width.times(self.width).of(size) for size in self.hidden]
        return mlp.Mlp(info.example_shape, info.num_classes, hidden)


class MlpHar(Mlp):
    """The MLP of Hermes's activity recognition: 1,103,366 parameters at 561 features and 6 classes."""

    name: str = "mlp_har"
    """Hermes's perceptron for activity recognition: `mlp` with hidden layers of 1024 and 512."""

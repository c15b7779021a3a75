"""What can be asked of each model. Imports in milliseconds: a config is checked before torch loads.

A model is an options class with `net(info, width)`, which imports its torch module when called,
and one line in `fedmpi.models.NAMES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol

from pydantic import Field

from fedmpi.config.schema import Count, Section
from fedmpi.models.width import Width

if TYPE_CHECKING:
    from torch import nn

# ResNet-152 has 50. Each is a few Python objects for every tier, which alone take seconds for a hundred.
MAX_BLOCKS = 100
Blocks = Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=8)]
# A hundred times a paper's channels is ten thousand times its parameters.
Multiplier = Annotated[float, Field(gt=0, le=100)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


class Inputs(Protocol):
    """What a model needs to know of the data; `data.DataInfo` has it."""

    @property
    def kind(self) -> str: ...
    @property
    def example_shape(self) -> tuple[int, ...]: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...


class ModelOptions(Protocol):
    """What `build` and the methods need of a model's options; `kinds` are the kinds of data that it takes."""

    kinds: ClassVar[tuple[str, ...]]
    name: str

    @property
    def dense_layers(self) -> int: ...
    def net(self, info: Inputs, width: Width) -> nn.Module: ...


class ResNet18(Section):
    """CIFAR ResNet-18: 3x3 stem without max-pool, post-activation BasicBlocks, 11,173,962 parameters at 10 classes."""

    kinds: ClassVar[tuple[str, ...]] = ("image",)
    name: str = "resnet18"
    """CIFAR ResNet-18 (FedHM): 3x3 stem, no max-pool, BatchNorm with batch statistics."""
    width: Multiplier = 1.0
    """Width multiplier: stage i has round(width * 64 * 2^i) channels."""
    blocks: Blocks = (2, 2, 2, 2)
    """BasicBlocks in each stage; every stage but the first halves the side and doubles the channels."""
    order: Literal["post", "pre"] = "post"
    """`post`: BatchNorm and ReLU after each conv. `pre`: before it, as in HeteroFL's code (no BatchNorm in shortcuts,
    one before the pooling).
    """

    @property
    def dense_layers(self) -> int:
        """FedHM's rho: the stem and the first block stay dense."""
        return 3

    def problems(self, config: object) -> Iterator[tuple[str, str]]:
        if sum(self.blocks) > MAX_BLOCKS:
            yield "model.blocks", f"{sum(self.blocks)} blocks; allowed: at most {MAX_BLOCKS} in all"

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.preresnet import PreResNet
        from fedmpi.models.resnet import ResNet

        net = ResNet if self.order == "post" else PreResNet
        return net(info.example_shape[0], info.num_classes, self.blocks, width.times(self.width))


class ResNet34(ResNet18):
    """CIFAR ResNet-34: as ResNet-18 with (3, 4, 6, 3) blocks, 21,328,292 parameters at 100 classes."""

    name: str = "resnet34"
    """CIFAR ResNet-34 (FedHM): 3x3 stem, no max-pool, BatchNorm with batch statistics."""
    blocks: Blocks = (3, 4, 6, 3)
    """BasicBlocks in each stage; every stage but the first halves the side and doubles the channels."""

    @property
    def dense_layers(self) -> int:
        """FedHM's rho: the stem and the first two stages stay dense (15 convs)."""
        return 1 + 2 * sum(self.blocks[:2])


class ScaledNet(Section):
    """What the nets below have in common."""

    kinds: ClassVar[tuple[str, ...]] = ("image",)
    name: str
    width: Multiplier = 1.0
    """Width multiplier of every layer but the last: round(width * its size)."""

    @property
    def dense_layers(self) -> int:
        """Only the stem stays dense."""
        return 1


class Vgg16(ScaledNet):
    """VGG-16 without BatchNorm, torchvision's layers: 134,301,514 parameters at 10 classes and 3 channels."""

    name: str = "vgg16"
    """VGG-16 without BatchNorm (Hermes): images with a side below 32 are zero-padded to 32."""
    dropout: Dropout = 0.5
    """Share of the hidden linear layers' outputs that are dropped in training."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models import classic

        return classic.Vgg16(info.example_shape, info.num_classes, width.times(self.width), self.dropout)


class AlexNet(ScaledNet):
    """AlexNet, torchvision's layers: 61,100,840 parameters at 1,000 classes and 3 channels."""

    name: str = "alexnet"
    """AlexNet (FDNNC): pixels are repeated until both sides of the image have 63 or more."""
    dropout: Dropout = 0.5
    """Share of the first two linear layers' inputs that are dropped in training."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models import classic

        return classic.AlexNet(info.example_shape, info.num_classes, width.times(self.width), self.dropout)


class Lenet5(ScaledNet):
    """LeNet-5: 62,006 parameters at 10 classes and 3x32x32."""

    name: str = "lenet5"
    """LeNet-5 (Hermes): images with a side below 32 are zero-padded to 32."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models import cnn

        return cnn.Cnn(cnn.LENET5, info.example_shape, info.num_classes, width.times(self.width))


class CnnHermes(ScaledNet):
    """10 and 20 kernels 5x5, 512 hidden units: 201,438 parameters at 62 classes and 1x28x28."""

    name: str = "cnn_hermes"
    """Hermes's CNN for EMNIST: images with a side below 28 are zero-padded to 28."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models import cnn

        return cnn.Cnn(cnn.CNN_HERMES, info.example_shape, info.num_classes, width.times(self.width))


class CnnFemnist(ScaledNet):
    """32 and 64 kernels 5x5: 246,590 parameters at 62 classes and 1x28x28."""

    name: str = "cnn_femnist"
    """PriSM's CNN for FEMNIST, for images of any size."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models import cnn

        return cnn.Cnn(cnn.CNN_FEMNIST, info.example_shape, info.num_classes, width.times(self.width))


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
        from fedmpi.models import mlp

        hidden = [width.times(self.width).of(size) for size in self.hidden]
        return mlp.Mlp(info.example_shape, info.num_classes, hidden)


class MlpHar(Mlp):
    """The MLP of Hermes's activity recognition: 1,103,366 parameters at 561 features and 6 classes."""

    name: str = "mlp_har"
    """Hermes's perceptron for activity recognition: `mlp` with hidden layers of 1024 and 512."""


class LstmImdb(ScaledNet):
    """Embedding, two LSTM layers and a linear one: 920,385 parameters at 1,001 words and two classes."""

    kinds: ClassVar[tuple[str, ...]] = ("tokens",)
    name: str = "lstm_imdb"
    """PriSM's LSTM for texts: an embedding, two LSTM layers, a linear one."""

    @property
    def dense_layers(self) -> int:
        """There is no stem."""
        return 0

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models import lstm

        return lstm.TextLstm(info.vocabulary_size, info.num_classes, width.times(self.width))


class LstmChar(ScaledNet):
    """Embedding of 8, two LSTM layers of 256, a linear one: 822,570 parameters at 90 symbols."""

    kinds: ClassVar[tuple[str, ...]] = ("tokens",)
    name: str = "lstm_char"
    """The character LSTM of McMahan et al. and LEAF: which symbol follows."""

    @property
    def dense_layers(self) -> int:
        """There is no stem."""
        return 0

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models import lstm

        return lstm.CharLstm(info.vocabulary_size, info.num_classes, width.times(self.width))


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
        from fedmpi.models.vit import Vit

        sizes = {name: getattr(self, name) for name in ("patch", "depth", "heads", "embedding", "dropout")}
        return Vit(info.example_shape, info.num_classes, width.times(self.width), **sizes)


class Torchvision(Section):
    """Any classification net of torchvision, initialised as torchvision does, BatchNorm with batch statistics."""

    kinds: ClassVar[tuple[str, ...]] = ("image",)
    name: Annotated[str, Field(pattern=r"^torchvision:\w+$")] = "torchvision:resnet50"
    """Any classification net of torchvision by its name, as torchvision:resnet50."""

    @property
    def dense_layers(self) -> int:
        """Only the stem stays dense."""
        return 1

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.zoo import torchvision_net

        return torchvision_net(self.name, info.num_classes, width.factor)

"""The options of models: their contract, and those of every built-in net. Imports in milliseconds, without torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol

from pydantic import Field

from fedmpi.config.fields import Count, Section
from fedmpi.config.schema import Config
from fedmpi.errors import counted
from fedmpi.models.width import Width

if TYPE_CHECKING:
    from torch import nn

# A hundred times a paper's channels is ten thousand times its parameters.
Multiplier = Annotated[float, Field(gt=0, le=100)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
# ResNet-152 has 50. Each is a few Python objects for every tier, which alone take seconds for a hundred.
MAX_BLOCKS = 100
Blocks = Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=8)]


class Inputs(Protocol):
    """What a model needs to know of the data; `data.dataset.DataInfo` has it."""

    def __hash__(self) -> int: ...
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
    def dense_layers(self) -> int:
        """FedHM's rho by default: how many of the first convs larger than 1x1 are never factorized."""
        ...

    def net(self, info: Inputs, width: Width) -> nn.Module: ...


class Model(Section):
    """Options of a net for images whose stem alone stays dense."""

    kinds: ClassVar[tuple[str, ...]] = ("image",)
    leading_dense: ClassVar[int] = 1
    """The stem: the first conv larger than 1x1, if there is one."""
    name: str

    @property
    def dense_layers(self) -> int:
        return self.leading_dense


class ScaledNet(Model):
    """Options of a net that has a width multiplier of its own. `made_by` (module of `nets`, class) is called with what
    the data are like, the width, and the other options."""

    made_by: ClassVar[str]
    width: Multiplier = 1.0
    """Width multiplier of every layer but the last: round(width * its size)."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        module, _, name = self.made_by.partition(":")
        own = {key: value for key, value in self if key not in ("name", "width")}
        make = getattr(importlib.import_module(f"fedmpi.models.nets.{module}"), name)
        return make(info, width.times(self.width), **own)


class Normalized(Section):
    """Options of a net that normalizes by the batch, or in groups of channels of each example."""

    norm: Literal["batch", "group"] = "batch"
    """`batch`: BatchNorm. `group`: GroupNorm in its place, which knows no batch and needs no statistics for tests."""
    norm_groups: Count = 4
    """Groups of a GroupNorm; they must divide the channels of every such layer, at every width."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        if self.norm == "batch" and self.norm_groups != type(self).model_fields["norm_groups"].default:
            todo = "set model.norm to group, or leave it out"
            yield "model.norm_groups", f"{counted(self.norm_groups, 'group')}, but model.norm is batch; {todo}"

    def normalized(self, net: nn.Module) -> nn.Module:
        """`net`, which has BatchNorms, with the norm that is asked for."""
        from fedmpi.models.nets.shared import with_group_norm

        return with_group_norm(net, self.norm_groups) if self.norm == "group" else net


class ResNet18(Normalized, ScaledNet):
    """CIFAR ResNet-18: 3x3 stem without max-pool, post-activation BasicBlocks, 11,173,962 parameters at 10 classes."""

    leading_dense: ClassVar[int] = 3  # the stem and the first block
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

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if sum(self.blocks) > MAX_BLOCKS:
            yield "model.blocks", f"{counted(sum(self.blocks), 'block')}; allowed: at most {MAX_BLOCKS} in all"

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets.resnet import PreResNet, ResNet

        made_by = ResNet if self.order == "post" else PreResNet
        return self.normalized(made_by(info, width.times(self.width), self.blocks))


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


class Vgg16(ScaledNet):
    """VGG-16 without BatchNorm, torchvision's layers: 134,301,514 parameters at 10 classes and 3 channels."""

    made_by: ClassVar[str] = "classic:Vgg16"
    name: str = "vgg16"
    """VGG-16 without BatchNorm (Hermes): images with a side below 32 are zero-padded to 32."""
    dropout: Dropout = 0.5
    """Share of the hidden linear layers' outputs that are dropped in training."""


class AlexNet(ScaledNet):
    """AlexNet, torchvision's layers: 61,100,840 parameters at 1,000 classes and 3 channels."""

    made_by: ClassVar[str] = "classic:AlexNet"
    name: str = "alexnet"
    """AlexNet (FDNNC): pixels are repeated until both sides of the image have 63 or more."""
    dropout: Dropout = 0.5
    """Share of the first two linear layers' inputs that are dropped in training."""


class Lenet5(ScaledNet):
    """LeNet-5: 62,006 parameters at 10 classes and 3x32x32."""

    name: str = "lenet5"
    """LeNet-5 (Hermes): images with a side below 32 are zero-padded to 32."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets.cnn import PLANS, Cnn

        return Cnn(PLANS[self.name], info, width.times(self.width))


class CnnHermes(Lenet5):
    """10 and 20 kernels 5x5, 512 hidden units: 201,438 parameters at 62 classes and 1x28x28."""

    name: str = "cnn_hermes"
    """Hermes's CNN for EMNIST: images with a side below 28 are zero-padded to 28."""


class CnnFemnist(Lenet5):
    """32 and 64 kernels 5x5: 246,590 parameters at 62 classes and 1x28x28."""

    name: str = "cnn_femnist"
    """PriSM's CNN for FEMNIST, for images of any size."""


class Mlp(ScaledNet):
    kinds: ClassVar[tuple[str, ...]] = ("image", "vector")
    leading_dense: ClassVar[int] = 0  # there is no stem
    made_by: ClassVar[str] = "mlp:Mlp"
    name: str = "mlp"
    """A multi-layer perceptron on vectors or flattened images."""
    hidden: Annotated[tuple[Count, ...], Field(strict=False, max_length=8)] = (1024, 512)
    """Sizes of the hidden layers; none is multinomial logistic regression."""


class MlpHar(Mlp):
    """The MLP of Hermes's activity recognition: 1,103,366 parameters at 561 features and 6 classes."""

    name: str = "mlp_har"
    """Hermes's perceptron for activity recognition: `mlp` with hidden layers of 1024 and 512."""


class LstmImdb(ScaledNet):
    """Embedding, two LSTM layers and a linear one: 920,385 parameters at 1,001 words and two classes."""

    kinds: ClassVar[tuple[str, ...]] = ("tokens",)
    leading_dense: ClassVar[int] = 0  # there is no stem
    made_by: ClassVar[str] = "lstm:TextLstm"
    name: str = "lstm_imdb"
    """PriSM's LSTM for texts: an embedding, two LSTM layers, a linear one."""


class LstmChar(LstmImdb):
    """Embedding of 8, two LSTM layers of 256, a linear one: 822,570 parameters at 90 symbols."""

    made_by: ClassVar[str] = "lstm:CharLstm"
    name: str = "lstm_char"
    """The character LSTM of McMahan et al. and LEAF: which symbol follows."""


class VitSmall(ScaledNet):
    """A vision transformer of DeiT-S's size: 21,342,346 parameters at 10 classes and 3x32x32."""

    made_by: ClassVar[str] = "vit:Vit"
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


class Torchvision(Normalized, Model):
    """Any classification net of torchvision, initialised as torchvision does, BatchNorm with batch statistics."""

    name: Annotated[str, Field(pattern=r"^torchvision:\w+$")] = "torchvision:resnet50"
    """Any classification net of torchvision by its name, as torchvision:resnet50."""

    @staticmethod
    def lacks(name: str) -> str:
        """Why torchvision has no net of this name; empty where it has one, or is not here. Only to say why imports it,
        because it loads torch.
        """
        net, torchvision = name.partition(":")[2], importlib.util.find_spec("torchvision")
        if not net.isidentifier() or torchvision is None or torchvision.origin is None:
            return ""
        files = Path(torchvision.origin).parent.glob("models/*.py")
        if any(f"\ndef {net}(" in file.read_text(encoding="utf-8") for file in files):
            return ""
        from fedmpi.models.nets.torchvision_nets import lacks

        return lacks(net)

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets.torchvision_nets import torchvision_net

        return self.normalized(torchvision_net(self.name, info.num_classes, width.factor))

"""Plain torch nets by name. They know nothing of low rank, clients or rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.config.schema import Choice
from fedmpi.lazy import exports
from fedmpi.models.options import (
    AlexNet,
    CnnFemnist,
    CnnHermes,
    Inputs,
    Lenet5,
    LstmChar,
    LstmImdb,
    Mlp,
    MlpHar,
    ModelOptions,
    ResNet18,
    ResNet34,
    Torchvision,
    Vgg16,
    VitSmall,
)
from fedmpi.models.width import Rounding, Width

if TYPE_CHECKING:
    from fedmpi.models.attention import Attention, open_attention
    from fedmpi.models.create import build, conversions, skeleton
    from fedmpi.models.ensemble import Ensemble
    from fedmpi.models.entry import refusal
    from fedmpi.models.nested import Part, fan_in_shares, nested_parts
    from fedmpi.models.norm import use_batch_statistics
    from fedmpi.models.scaler import add_scaler, norm_layers, scaled_layers, scaler_warning

__all__ = [
    "NAMES",
    "AlexNet",
    "Attention",
    "CnnFemnist",
    "CnnHermes",
    "Ensemble",
    "Inputs",
    "Lenet5",
    "LstmChar",
    "LstmImdb",
    "Mlp",
    "MlpHar",
    "ModelOptions",
    "Part",
    "ResNet18",
    "ResNet34",
    "Rounding",
    "Torchvision",
    "Vgg16",
    "VitSmall",
    "Width",
    "add_scaler",
    "build",
    "conversions",
    "fan_in_shares",
    "nested_parts",
    "norm_layers",
    "open_attention",
    "refusal",
    "scaled_layers",
    "scaler_warning",
    "skeleton",
    "use_batch_statistics",
]

NAMES: dict[str, Choice] = {
    "resnet18": Choice(ResNet18, "CIFAR ResNet-18 (FedHM): 3x3 stem, no max-pool, BatchNorm with batch statistics"),
    "resnet34": Choice(ResNet34, "CIFAR ResNet-34 (FedHM): 3x3 stem, no max-pool, BatchNorm with batch statistics"),
    "vgg16": Choice(Vgg16, "VGG-16 without BatchNorm (Hermes): images with a side below 32 are zero-padded to 32"),
    "alexnet": Choice(AlexNet, "AlexNet (FDNNC): pixels are repeated until both sides of the image have 63 or more"),
    "lenet5": Choice(Lenet5, "LeNet-5 (Hermes): images with a side below 32 are zero-padded to 32"),
    "cnn_hermes": Choice(CnnHermes, "Hermes's CNN for EMNIST: images with a side below 28 are zero-padded to 28"),
    "cnn_femnist": Choice(CnnFemnist, "PriSM's CNN for FEMNIST, for images of any size"),
    "mlp": Choice(Mlp, "a multi-layer perceptron on vectors or flattened images"),
    "mlp_har": Choice(MlpHar, "Hermes's perceptron for activity recognition: `mlp` with hidden layers of 1024 and 512"),
    "lstm_imdb": Choice(LstmImdb, "PriSM's LSTM for texts: an embedding, two LSTM layers, a linear one"),
    "lstm_char": Choice(LstmChar, "the character LSTM of McMahan et al. and LEAF: which symbol follows"),
    "vit_small": Choice(VitSmall, "a vision transformer of DeiT-S's size: images are zero-padded to whole patches"),
    "torchvision:": Choice(Torchvision, "any classification net of torchvision by its name, as torchvision:resnet50"),
}

__getattr__ = exports(
    __name__,
    {
        "Attention": "attention",
        "Ensemble": "ensemble",
        "Part": "nested",
        "add_scaler": "scaler",
        "build": "create",
        "conversions": "create",
        "fan_in_shares": "nested",
        "nested_parts": "nested",
        "norm_layers": "scaler",
        "open_attention": "attention",
        "refusal": "entry",
        "scaled_layers": "scaler",
        "scaler_warning": "scaler",
        "skeleton": "create",
        "use_batch_statistics": "norm",
    },
)

"""Nets of transformers and timm as users bring them: small, with random values."""

import numpy as np
from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

LENGTH = 6


class Bert(BertForSequenceClassification):
    """Tokens (B, length) -> logits (B, classes)."""

    def __init__(self, num_classes: int, vocabulary_size: int) -> None:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        super().__init__(BertConfig(vocab_size=vocabulary_size, num_labels=num_classes, **sizes))

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).logits


class Gpt2(GPT2LMHeadModel):
    """Tokens (B, length) -> logits (B, length, classes); the embedding and the last layer share weights."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(GPT2Config(vocab_size=num_classes, n_embd=16, n_layer=2, n_head=2, use_cache=False))

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).logits


def vit(num_classes: int, example_shape: tuple[int, ...]) -> VisionTransformer:
    sizes = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    return VisionTransformer(example_shape[1:], in_chans=example_shape[0], num_classes=num_classes, **sizes)


def resnet(num_classes: int, example_shape: tuple[int, ...]) -> ResNet:
    channels = {"stem_width": 8, "channels": (8, 16, 16, 16)}
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes, in_chans=example_shape[0], **channels)


def reviews(num: int = 80) -> dict[str, np.ndarray]:
    """Tokens 0 to 9; a review is good if its first one is above 4."""
    x = np.random.default_rng(0).integers(0, 10, (num, LENGTH))
    y = (x[:, 0] > 4).astype(np.int64)
    cut = num * 3 // 4
    return {"train_x": x[:cut], "train_y": y[:cut], "test_x": x[cut:], "test_y": y[cut:]}


def sentences(num: int = 80) -> dict[str, np.ndarray]:
    """Each token is the one before plus 3, modulo 10."""
    x = (np.random.default_rng(0).integers(0, 10, (num, 1)) + 3 * np.arange(LENGTH + 1)) % 10
    cut = num * 3 // 4
    parts = {"train": x[:cut], "test": x[cut:]}
    return {f"{part}_{name}": rows for part, x in parts.items() for name, rows in (("x", x[:, :-1]), ("y", x[:, 1:]))}

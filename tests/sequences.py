"""Sequences whose every token has a label, and small nets that give one row of logits for each token."""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from fedmpi.data.dataset import IGNORED

LENGTH = 6


def parity(num: int = 60, large: int = 0) -> dict[str, np.ndarray]:
    """Tokens 0 to 4, added to `large`, labelled by their remainder by 3; every fifth token has no label."""
    tokens = np.random.default_rng(0).integers(0, 5, (num, LENGTH))
    labels = np.where(np.arange(num * LENGTH).reshape(num, -1) % 5 == 4, IGNORED, tokens % 3)
    cut = num * 3 // 4
    tokens = tokens + large
    return {"train_x": tokens[:cut], "train_y": labels[:cut], "test_x": tokens[cut:], "test_y": labels[cut:]}


def unlabelled() -> dict[str, np.ndarray]:
    """The labels of one training example are all left out."""
    arrays = parity()
    arrays["train_y"][7] = IGNORED
    return arrays


def negative() -> dict[str, np.ndarray]:
    arrays = parity()
    arrays["test_y"][0, 0] = -1
    return arrays


class Tagger(nn.Sequential):
    """Tokens (B, length) -> logits (B, length, classes), each of its own token."""

    def __init__(self, num_classes: int, vocabulary_size: int, hidden: int = 8) -> None:
        super().__init__(nn.Embedding(vocabulary_size, hidden), nn.Tanh(), nn.Linear(hidden, num_classes))


class Forgetful(Tagger):
    """The logits of the last token alone."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens)[:, -1]


def words_of(text: str) -> list[int]:
    """A tokenizer: the length of each word."""
    return [len(word) for word in text.split()]


def codes_of(text: str) -> list[int]:
    """A tokenizer: the number of each character."""
    return [ord(character) for character in text]


def fractions_of(text: str) -> list[float]:
    return [0.5 for _ in text]


def write_users(folder: Path) -> None:
    """Three users' files, of which one has a single character."""
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_text("abcdefghij" * 12)
    (folder / "b/c.txt").write_text("zyxw" * 20)
    (folder / "short.txt").write_text("x")
    (folder / ".hidden").write_text("not read " * 20)

"""A small GPT on bytes, and the texts that it learns: film reviews by film, then tinyshakespeare by role.

    python configs/studies/byte_gpt.py ~/data runs/texts

`~/data` has aclImdb (http://ai.stanford.edu/~amaas/data/sentiment) and tinyshakespeare/input.txt (karpathy/char-rnn).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.data.dataset import DataInfo
from fedmpi.data.sets.text import NUM_BYTES, Text

NUM_GROUPS = 40
"""Those with the most text become files."""
COUNTS = {"reviews": (34_056, 3_801), "plays": (9_032, 1_020)}
"""Training and test blocks of 64 bytes."""


class Texts(Text):
    name: str = "texts"
    """The files that this module writes; a plan knows their counts without them."""

    def info(self) -> DataInfo:
        counts = COUNTS[Path(self.path).name]
        groups = {"num_groups": NUM_GROUPS, "shares_groups": True}
        return DataInfo(
            "tokens", (64,), NUM_BYTES, *counts, vocabulary_size=NUM_BYTES, task="token_classification", **groups
        )


class Block(nn.Module):
    """Attention to earlier tokens, and a perceptron, each beside the stream, as in GPT-2."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.norm_2 = nn.LayerNorm(size)
        self.wide = nn.Linear(size, 4 * size)
        self.narrow = nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm_1(x)).unflatten(2, (3, self.heads, -1)).transpose(1, 3)
        mixed = F.scaled_dot_product_attention(*parts.unbind(2), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norm_2(x))))


class Gpt(nn.Module):
    """Tokens (B, length) -> logits (B, length, classes) of the tokens that follow."""

    def __init__(
        self, num_classes: int, example_shape: tuple[int, ...], size: int = 80, depth: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_classes, size)
        self.places = nn.Embedding(example_shape[0], size)
        self.blocks = nn.Sequential(*[Block(size, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, num_classes)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.tokens(tokens) + places)))


def reviews(root: Path) -> Mapping[str, Sequence[str]]:
    """Returns the training reviews of each film, first the bad ones."""
    films: dict[str, list[str]] = {}
    for part in ("neg", "pos"):
        names = re.findall(r"/title/(tt\d+)", (root / f"aclImdb/train/urls_{part}.txt").read_text())
        paths = {int(path.stem.partition("_")[0]): path for path in (root / "aclImdb/train" / part).glob("*.txt")}
        for number, film in enumerate(names):
            films.setdefault(film, []).append(paths[number].read_text(encoding="utf-8").replace("<br />", "\n"))
    return films


def speeches(root: Path) -> Mapping[str, Sequence[str]]:
    """Returns the speeches of each role."""
    roles: dict[str, list[str]] = {}
    for block in re.split(r"\n{2,}", (root / "tinyshakespeare/input.txt").read_text().strip("\n")):
        role, _, speech = block.partition(":\n")
        if speech:
            roles.setdefault(role.replace(" ", "_"), []).append(speech)
    return roles


def write_largest(groups: Mapping[str, Sequence[str]], folder: Path) -> None:
    """Writes a file for each of the groups with the most text."""
    texts = {name: "\n".join(parts).encode() for name, parts in groups.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(texts, key=lambda name: (-len(texts[name]), name))[:NUM_GROUPS]:
        (folder / f"{name}.txt").write_bytes(texts[name])


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    write_largest(reviews(source), target / "reviews")
    write_largest(speeches(source), target / "plays")

"""The formats by name: each is a module with SUFFIX, `pack` (a net -> the bytes of its file), `load` (a file -> what
computes logits) and SNIPPET (how to use the file without fedmpi).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from fedmpi.export import onnx_file, pt2_file, safetensors_file
from fedmpi.export.trained import TrainedNet

Answers = Callable[[Tensor], Tensor]
"""Inputs (B, ...) -> logits (B, num_classes)."""


class Format(Protocol):
    """What one format does."""

    SUFFIX: str
    SNIPPET: str
    IS_EXACT: bool
    """Whether the file runs in torch, and so must give the very predictions."""

    def pack(self, trained: TrainedNet, metadata: Mapping[str, str]) -> bytes:
        """The file. Raises ConfigError where the net has no such form, or a package is missing."""

    def load(self, path: Path, trained: TrainedNet) -> Answers:
        """What the file computes. Raises ConfigError where a package is missing."""


FORMATS: dict[str, Format] = {"safetensors": safetensors_file, "pt2": pt2_file, "onnx": onnx_file}

"""The formats by name: each is a module that packs a net into a file, loads it, and says how to use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, get_args

from torch import Tensor

from fedmpi.export import onnx_file, pt2_file, safetensors_file
from fedmpi.export.choices import FormatName
from fedmpi.export.trained import TrainedNet

Answers = Callable[[Tensor], Tensor]
"""Inputs (B, ...) -> logits (B, num_classes)."""


class Format(Protocol):
    """What one format does."""

    SUFFIX: str
    NEEDS: str
    """What the file is used with."""
    SNIPPET: str
    """Code that makes class numbers of inputs `x`; `{path!r}` is the file, `{made}` an expression for a net of the same
    layers."""
    ARRAYS: str
    """The package, torch or numpy, whose array `x` is."""
    IS_EXACT: bool
    """Whether the file runs in torch, and so must give the very predictions."""

    def pack(self, trained: TrainedNet, metadata: Mapping[str, str]) -> bytes:
        """The file. Raises ConfigError where the net has no such form, or a package is missing."""

    def load(self, path: Path, trained: TrainedNet) -> Answers:
        """What the file computes. Raises ConfigError where a package is missing."""


_MODULES: tuple[Format, ...] = (pt2_file, safetensors_file, onnx_file)
FORMATS: dict[str, Format] = dict(zip(get_args(FormatName), _MODULES, strict=True))

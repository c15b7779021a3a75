"""What an export can be asked for, in types; loads no torch."""

from __future__ import annotations

from typing import Literal

Form = Literal["dense", "factorized"]
"""Whether the factors of a layer are multiplied out."""
FormatName = Literal["pt2", "safetensors", "onnx"]
Round = Literal["last", "best"] | int
"""A saved round: the last one, the one of the highest mean accuracy, or by its number."""


def tier_name(tier: str | float) -> str:
    """`0.5` for 0.5, as the records have it."""
    return tier if isinstance(tier, str) else f"{tier:g}"

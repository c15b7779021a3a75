"""What the parameters of a factorized net are called. Loads without torch, because methods do."""

from __future__ import annotations

from collections.abc import Container


def dense_name(name: str, layers: Container[str]) -> str:
    """The dense net's name of a parameter of the factorized one: `v` carries the bias of its layer, one of `layers`."""
    layer = name.removesuffix(".v.bias")
    return f"{layer}.bias" if layer in layers else name

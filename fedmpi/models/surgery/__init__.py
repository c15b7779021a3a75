"""What can be done to any net, built in or a user's: read its channels, cut them, nest, scale and join nets.

A submodule loads on first use, because it needs torch: methods say `surgery.scaler.add_scaler`, and their files still
load in milliseconds.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmpi.models.surgery import ensemble, groups, nested, rolling, scaler

__all__ = ["ensemble", "groups", "nested", "rolling", "scaler"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")

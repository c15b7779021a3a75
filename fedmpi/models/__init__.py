"""Plain torch nets by name. They know nothing of low rank, clients or rounds.

A model is two files: its options, which load without torch, and the net. A submodule loads on first use, because most
need torch: methods say `models.scaler.add_scaler`, and their files still load in milliseconds.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmpi.models import ensemble, nested, scaler

__all__ = ["ensemble", "nested", "scaler"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")

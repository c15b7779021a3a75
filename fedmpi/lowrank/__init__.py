"""Low-rank algebra: SVD, which layers are factorized, factor nets, Frobenius decay, spectra, what a mean of them loses.

Knows no client, no config and no method. Throughout: a factorized layer with m inputs and n
outputs runs as two layers, `u` (m -> r, applied first) and `v` (r -> n, with the bias); the
unrolled weight W (M, N) is approximated by u_matrix (M, r) @ v_matrix (r, N). (PriSM's V runs first,
so that its V is `u` here and its U is `v`.)

A submodule loads on first use, because it needs torch: methods say `lowrank.svd.truncated_svd`, and their files
still load in milliseconds.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmpi.lowrank import (
        correction,
        decay,
        factorized,
        gates,
        kernels,
        modules,
        rule,
        spectrum,
        svd,
        warm,
        whole_stem,
    )

__all__ = [
    "correction",
    "decay",
    "factorized",
    "gates",
    "kernels",
    "modules",
    "rule",
    "spectrum",
    "svd",
    "warm",
    "whole_stem",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")

"""Names that load their module on first use (PEP 562).

A config is validated before anything heavy loads: a method's options stand in the same file as
its mathematics, and that file must import in milliseconds. Packages that need torch therefore
export their names through `exports`: `from fedmpi import lowrank` costs nothing,
`lowrank.truncated_svd` loads torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def exports(package: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of `package`, where `names` maps each public name to the submodule that has it."""

    def load(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{names[name]}"), name)

    return load

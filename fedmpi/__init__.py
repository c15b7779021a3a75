"""fedmpi: federated learning with clients of unequal capacity, simulated as one MPI job."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedmpi.config.schema import Config
    from fedmpi.errors import ConfigError, Interrupted, RoundError, RunDirError, UserError
    from fedmpi.library.api import load_config, open_run, plan, run
    from fedmpi.library.run import Run
    from fedmpi.running.forecast import Forecast
else:
    # Loaded when they are first used, so that `import fedmpi` costs nothing. A test compares them with the lines above.
    _PLACES = {
        **dict.fromkeys(("load_config", "plan", "run", "open_run"), "fedmpi.library.api"),
        "Run": "fedmpi.library.run",
        "Config": "fedmpi.config.schema",
        "Forecast": "fedmpi.running.forecast",
        **dict.fromkeys(("UserError", "ConfigError", "RunDirError", "RoundError", "Interrupted"), "fedmpi.errors"),
    }

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module 'fedmpi' has no attribute {name!r}")
        return getattr(importlib.import_module(_PLACES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_PLACES})


__all__ = [
    "Config",
    "ConfigError",
    "Forecast",
    "Interrupted",
    "RoundError",
    "Run",
    "RunDirError",
    "UserError",
    "load_config",
    "open_run",
    "plan",
    "run",
]

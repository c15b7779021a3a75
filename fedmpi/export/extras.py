"""Packages that only an export needs: imported where they are used, and named in one line where they are missing."""

from __future__ import annotations

import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import Any

from fedmpi.errors import ConfigError, one_line


def extra(package: str, wanted_by: str) -> Any:
    """The module. Raises ConfigError that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        top = package.partition(".")[0]
        raise ConfigError(wanted_by, f"needs the package {top}; pip install 'fedmpi[export]'") from None


@contextmanager
def exporting(wanted_by: str, name: str) -> Iterator[None]:
    """Within, a net that cannot be traced is a ConfigError of one line, and torch's own warnings are not shown."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(), ExitStack() as stack:
        stack.callback(logging.disable, before)
        stack.enter_context(redirect_stderr(io.StringIO()))  # the graph so far, where a net cannot be traced
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as error:
            cause = error.__cause__ or error
            why = one_line(f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}")
            advice = "take --format=safetensors, which needs no graph"
            raise ConfigError(wanted_by, f"the net of {name} cannot be traced: {why}; {advice}") from error
